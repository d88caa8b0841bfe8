//! Who runs beside whom: most tests beside each other, those that harm the cluster itself alone.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static TURN: RwLock<()> = RwLock::new(());

/// Held while a test runs.
#[expect(dead_code, reason = "held, never read")]
pub(crate) enum Turn {
    /// Beside others.
    Shared(RwLockReadGuard<'static, ()>),
    /// Nobody else.
    Alone(RwLockWriteGuard<'static, ()>),
}

impl Turn {
    /// Waits until nobody is alone.
    pub(crate) fn shared() -> Self {
        Self::Shared(TURN.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until nobody else runs.
    pub(crate) fn alone() -> Self {
        Self::Alone(TURN.write().unwrap_or_else(PoisonError::into_inner))
    }
}
