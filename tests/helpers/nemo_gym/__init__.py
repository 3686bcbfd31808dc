"""Stand-ins for NeMo Gym's servers, and a reader of its rows."""
