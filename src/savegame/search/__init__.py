"""Full text over messages: catching up with the store, and hits."""
