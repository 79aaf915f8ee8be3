"""Cases with stable ids, and their inputs."""
