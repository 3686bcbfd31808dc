"""What stands in for NeMo Gym's servers, and what reads its rows."""
