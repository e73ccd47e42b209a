"""What all surfaces share: ages and sizes, lanes, differences, completion, the check-up."""
