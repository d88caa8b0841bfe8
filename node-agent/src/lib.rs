//! One process that owns its pod's devices and serves one model.
