"""Running cases: guarded memory, behaviour cases, waivers, the manifest."""
