"""What the gateway costs a call, beside the sampler alone."""
