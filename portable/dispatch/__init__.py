"""From a call to the implementation that runs it: arguments, selection, the fast path, torch.library."""
