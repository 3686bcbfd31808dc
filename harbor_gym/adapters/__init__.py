"""One package for each training framework. An adapter translates and decides nothing."""
