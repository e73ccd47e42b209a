"""What every surface shows in the same way: ages and sizes, lanes, differences, completion, the check-up."""
