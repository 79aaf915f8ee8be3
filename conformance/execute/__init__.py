"""Running cases: workers, guarded memory, behaviour cases, waivers, the manifest."""
