"""One package for each training framework: it translates, and decides nothing."""
