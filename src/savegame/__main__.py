"""`python -m savegame` is the command `savegame`."""

from savegame.cli import main

if __name__ == "__main__":
    main()
