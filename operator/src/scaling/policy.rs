//! What the user allows, in whole numbers as the resource has them.

/// Whether decisions are applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// They are.
    #[default]
    Auto,
    /// They are only shown.
    Advisory,
}

/// Unit of a scaling policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// Workers.
    Pods,
    /// Hundredths of the workers at the period's begin; never less than one worker.
    Percent,
}

/// At most so much change in so many seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScalingPolicy {
    /// Unit of `value`.
    pub kind: StepKind,
    /// How much, from 1.
    pub value: i32,
    /// In how many seconds, 1 to 1800.
    pub period_seconds: i32,
}

/// Rules of one direction, as HPA v2 has them; of several policies the one that allows most counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalingRules {
    /// Seconds of recommendations of which the safest counts, 0 to 3600.
    pub stabilization_window_seconds: i32,
    /// At least one.
    pub policies: Vec<ScalingPolicy>,
}

/// The policy of one pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Fewest workers; 0 allows none at all.
    pub min_replicas: i32,
    /// Most workers.
    pub max_replicas: i32,
    /// A pool at rest, at its minimum, begins to scale when so much of the traffic is cold.
    pub activation_cold_share_percent: i32,
    /// A pool above its minimum is idle when less than this is cold.
    pub deactivation_cold_share_percent: i32,
    /// How busy workers should be.
    pub target_utilization_percent: i32,
    /// Bound of the 95th percentile of the first-token time of cold requests, in ms.
    pub slo_cold_first_token_ms: Option<i32>,
    /// Bound of the wait for admission, in ms.
    pub max_queue_age_ms: Option<i32>,
    /// How far the need may be off without a change.
    pub tolerance_percent: i32,
    /// Seconds of idleness before the last worker goes.
    pub idle_seconds: i32,
    /// Rules upwards.
    pub scale_up: ScalingRules,
    /// Rules downwards.
    pub scale_down: ScalingRules,
    /// Whether decisions are applied.
    pub mode: Mode,
}

impl Policy {
    /// The defaults, between these bounds.
    pub fn between(min_replicas: i32, max_replicas: i32) -> Self {
        let step = |kind, value, period_seconds| ScalingPolicy { kind, value, period_seconds };
        Self {
            min_replicas,
            max_replicas,
            activation_cold_share_percent: 5,
            deactivation_cold_share_percent: 2,
            target_utilization_percent: 70,
            slo_cold_first_token_ms: None,
            max_queue_age_ms: None,
            tolerance_percent: 10,
            idle_seconds: 300,
            scale_up: ScalingRules {
                stabilization_window_seconds: 0,
                policies: vec![step(StepKind::Percent, 100, 15), step(StepKind::Pods, 4, 15)],
            },
            scale_down: ScalingRules {
                stabilization_window_seconds: 300,
                policies: vec![step(StepKind::Percent, 50, 60), step(StepKind::Pods, 1, 60)],
            },
            mode: Mode::Auto,
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// [`Error`] names the first field that is not possible.
    pub fn check(self) -> Result<ValidPolicy, Error> {
        within("minReplicas", self.min_replicas, 0, i32::MAX)?;
        within("maxReplicas", self.max_replicas, 1, i32::MAX)?;
        ordered(("minReplicas", self.min_replicas), ("maxReplicas", self.max_replicas))?;
        within("activationColdSharePercent", self.activation_cold_share_percent, 0, 100)?;
        within("deactivationColdSharePercent", self.deactivation_cold_share_percent, 0, 100)?;
        ordered(
            ("deactivationColdSharePercent", self.deactivation_cold_share_percent),
            ("activationColdSharePercent", self.activation_cold_share_percent),
        )?;
        within("targetUtilizationPercent", self.target_utilization_percent, 1, 100)?;
        within("tolerancePercent", self.tolerance_percent, 0, 100)?;
        within("idleSeconds", self.idle_seconds, 0, i32::MAX)?;
        within("sloColdFirstTokenMs", self.slo_cold_first_token_ms.unwrap_or(1), 1, i32::MAX)?;
        within("maxQueueAgeMs", self.max_queue_age_ms.unwrap_or(1), 1, i32::MAX)?;
        self.scale_up.check([
            "scaleUp.stabilizationWindowSeconds",
            "scaleUp.policies",
            "scaleUp.policies.value",
            "scaleUp.policies.periodSeconds",
        ])?;
        self.scale_down.check([
            "scaleDown.stabilizationWindowSeconds",
            "scaleDown.policies",
            "scaleDown.policies.value",
            "scaleDown.policies.periodSeconds",
        ])?;
        Ok(ValidPolicy(self))
    }
}

impl ScalingRules {
    fn check(&self, [window, policies, value, period]: [&'static str; 4]) -> Result<(), Error> {
        within(window, self.stabilization_window_seconds, 0, 3600)?;
        if self.policies.is_empty() {
            return Err(Error::NoPolicy { field: policies });
        }
        for policy in &self.policies {
            within(value, policy.value, 1, i32::MAX)?;
            within(period, policy.period_seconds, 1, 1800)?;
        }
        Ok(())
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
    /// Two numbers in the wrong order.
    #[error("'{lower}' is {low}, over '{upper}', which is {high}")]
    Crossed {
        /// The field that should be less.
        lower: &'static str,
        /// What it is.
        low: i32,
        /// The field that should be more.
        upper: &'static str,
        /// What it is.
        high: i32,
    },
    /// Rules that would allow no change ever.
    #[error("'{field}' is empty: at least one is needed")]
    NoPolicy {
        /// As the resource names it.
        field: &'static str,
    },
}

fn within(field: &'static str, value: i32, low: i32, high: i32) -> Result<(), Error> {
    if (low..=high).contains(&value) { Ok(()) } else { Err(Error::OutOfRange { field, value, low, high }) }
}

fn ordered((lower, low): (&'static str, i32), (upper, high): (&'static str, i32)) -> Result<(), Error> {
    if low <= high { Ok(()) } else { Err(Error::Crossed { lower, low, upper, high }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_possible() {
        assert!(Policy::between(0, 8).check().is_ok());
    }

    #[test]
    fn what_is_not_possible_is_refused_by_name() {
        let refused = |change: &dyn Fn(&mut Policy)| {
            let mut policy = Policy::between(1, 4);
            change(&mut policy);
            policy.check().unwrap_err().to_string()
        };
        type Case<'a> = (&'a dyn Fn(&mut Policy), &'a str);
        let cases: [Case<'_>; 6] = [
            (&|policy| policy.min_replicas = 5, "'minReplicas' is 5, over 'maxReplicas', which is 4"),
            (&|policy| policy.min_replicas = -1, "'minReplicas' is -1, but must be 0 to 2147483647"),
            (
                &|policy| policy.target_utilization_percent = 0,
                "'targetUtilizationPercent' is 0, but must be 1 to 100",
            ),
            (
                &|policy| policy.deactivation_cold_share_percent = 6,
                "'deactivationColdSharePercent' is 6, over 'activationColdSharePercent', which is 5",
            ),
            (
                &|policy| policy.scale_up.policies.clear(),
                "'scaleUp.policies' is empty: at least one is needed",
            ),
            (
                &|policy| policy.scale_down.policies[0].period_seconds = 0,
                "'scaleDown.policies.periodSeconds' is 0, but must be 1 to 1800",
            ),
        ];
        for (change, message) in cases {
            assert_eq!(refused(change), message);
        }
    }
}
