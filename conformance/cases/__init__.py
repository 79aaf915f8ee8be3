"""What is asked: cases with stable ids, and their inputs."""
