"""The gateway's cost of a call, beside the sampler alone."""
