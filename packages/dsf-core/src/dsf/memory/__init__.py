"""Where each tensor lives: the main memory as an allocator, and the plan of a step's temporaries."""
