"""The stores that come with savegame, one module each."""
