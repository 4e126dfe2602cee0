"""What happens when a program runs: numbers, time, and the memory they live in."""
