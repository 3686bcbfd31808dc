"""From the last turn to the reward: clean up the sandbox, choose the verifier's view, read the verifier's rewards."""
