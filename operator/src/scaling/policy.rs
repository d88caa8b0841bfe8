//! What the user allows, in the whole numbers and by the names of the resource. Defaults are the resource's.

use std::time::Duration;

/// Whether decisions are applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// They are.
    #[default]
    Auto,
    /// They are only shown.
    Advisory,
}

/// Rules of one direction, after HPA v2's `behavior`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScalingRules {
    /// Seconds of recommendations of which the safest counts, 0 to 3600.
    pub stabilization_window_seconds: i32,
    /// Most workers per period, from 1; the larger of this and `percent` counts.
    pub workers: i32,
    /// Most change per period in hundredths of the workers at its begin.
    pub percent: i32,
    /// Length of the period in seconds, 1 to 1800.
    pub period_seconds: i32,
}

/// The policy of one pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Fewest workers; 0 allows none at all.
    pub min_replicas: i32,
    /// Most workers.
    pub max_replicas: i32,
    /// Whether decisions are applied.
    pub mode: Mode,
    /// A pool at rest, at its minimum, begins to scale when so much of the traffic is cold. Above its minimum it
    /// is idle at less than half of this, so that traffic at the gate does not flap it.
    pub activation_cold_share_percent: i32,
    /// How busy workers should be.
    pub target_utilization_percent: i32,
    /// How far the need may be off without a change.
    pub tolerance_percent: i32,
    /// Bound of the 95th percentile of the first-token time of cold requests.
    pub first_token_target_milliseconds: Option<i32>,
    /// Bound of the wait for admission.
    pub max_queue_age_milliseconds: Option<i32>,
    /// Seconds of idleness before the last worker goes.
    pub idle_seconds: i32,
    /// Rules upwards.
    pub scale_up: ScalingRules,
    /// Rules downwards.
    pub scale_down: ScalingRules,
}

impl Policy {
    /// Checks every field.
    ///
    /// # Errors
    /// [`Error`] names the first field that is not possible.
    pub fn check(self) -> Result<ValidPolicy, Error> {
        within("minReplicas", self.min_replicas, 0, i32::MAX)?;
        within("maxReplicas", self.max_replicas, 1, i32::MAX)?;
        if self.min_replicas > self.max_replicas {
            return Err(Error::Crossed { min: self.min_replicas, max: self.max_replicas });
        }
        within("activationColdSharePercent", self.activation_cold_share_percent, 0, 100)?;
        within("targetUtilizationPercent", self.target_utilization_percent, 1, 100)?;
        within("tolerancePercent", self.tolerance_percent, 0, 100)?;
        within(
            "firstTokenTargetMilliseconds",
            self.first_token_target_milliseconds.unwrap_or(1),
            1,
            i32::MAX,
        )?;
        within("maxQueueAgeMilliseconds", self.max_queue_age_milliseconds.unwrap_or(1), 1, i32::MAX)?;
        within("idleSeconds", self.idle_seconds, 0, i32::MAX)?;
        self.scale_up.check([
            "scaleUp.stabilizationWindowSeconds",
            "scaleUp.workers",
            "scaleUp.percent",
            "scaleUp.periodSeconds",
        ])?;
        self.scale_down.check([
            "scaleDown.stabilizationWindowSeconds",
            "scaleDown.workers",
            "scaleDown.percent",
            "scaleDown.periodSeconds",
        ])?;
        Ok(ValidPolicy(self))
    }
}

impl ScalingRules {
    fn check(&self, [window, workers, percent, period]: [&'static str; 4]) -> Result<(), Error> {
        within(window, self.stabilization_window_seconds, 0, 3600)?;
        within(workers, self.workers, 1, i32::MAX)?;
        within(percent, self.percent, 0, i32::MAX)?;
        within(period, self.period_seconds, 1, 1800)
    }

    pub(super) fn window(&self) -> Duration {
        seconds(self.stabilization_window_seconds)
    }

    pub(super) fn period(&self) -> Duration {
        seconds(self.period_seconds)
    }
}

/// A policy whose fields are possible, each and together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidPolicy(Policy);

impl std::ops::Deref for ValidPolicy {
    type Target = Policy;

    fn deref(&self) -> &Policy {
        &self.0
    }
}

/// Why a policy is not possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A number outside its range.
    #[error("'{field}' is {value}, but must be {low} to {high}")]
    OutOfRange {
        /// As the resource names it.
        field: &'static str,
        /// What it is.
        value: i32,
        /// Least allowed.
        low: i32,
        /// Most allowed.
        high: i32,
    },
    /// Bounds in the wrong order.
    #[error("'minReplicas' is {min}, over 'maxReplicas', which is {max}")]
    Crossed {
        /// The minimum.
        min: i32,
        /// The maximum.
        max: i32,
    },
}

fn within(field: &'static str, value: i32, low: i32, high: i32) -> Result<(), Error> {
    if (low..=high).contains(&value) { Ok(()) } else { Err(Error::OutOfRange { field, value, low, high }) }
}

pub(super) fn seconds(seconds: i32) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}
