"""OpenCL devices: found by name, tested, and given a model's products to compute."""
