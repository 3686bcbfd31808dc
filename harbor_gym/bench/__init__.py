"""Steps, resets and episodes, side by side with Harbor's own: ``harbor-gym bench``."""
