//! Why a decision is what it is.

/// What settled the number. Its name is the reason of a condition and of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// So many workers build what is cold.
    Demand,
    /// The need is so near to what is there that nothing changes.
    WithinTolerance,
    /// Too little of the traffic is cold to keep workers for it.
    BelowColdShare,
    /// First tokens of cold requests need them.
    SloFloor,
    /// Requests wait too long for admission while workers are busy.
    QueueAge,
    /// There is demand, but nobody's speed is known.
    NoSpeedKnown,
    /// A recommendation inside the stabilisation window holds the number.
    Stabilized,
    /// Not enough recommendations are known yet to go down (or up, with a window for it).
    WaitingForWindow,
    /// The step policy allows no more for now.
    StepLimited,
    /// Idle long enough for no workers at all.
    ScaledToZero,
    /// More would be needed than the pool allows.
    AtMaximum,
    /// Less would do than the pool allows.
    AtMinimum,
    /// Counters are missing.
    Frozen,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Demand,
        Self::WithinTolerance,
        Self::BelowColdShare,
        Self::SloFloor,
        Self::QueueAge,
        Self::NoSpeedKnown,
        Self::Stabilized,
        Self::WaitingForWindow,
        Self::StepLimited,
        Self::ScaledToZero,
        Self::AtMaximum,
        Self::AtMinimum,
        Self::Frozen,
    ];

    /// CamelCase, as Kubernetes wants reasons.
    pub fn name(self) -> &'static str {
        match self {
            Self::Demand => "Demand",
            Self::WithinTolerance => "WithinTolerance",
            Self::BelowColdShare => "BelowColdShare",
            Self::SloFloor => "SloFloor",
            Self::QueueAge => "QueueAge",
            Self::NoSpeedKnown => "NoSpeedKnown",
            Self::Stabilized => "Stabilized",
            Self::WaitingForWindow => "WaitingForWindow",
            Self::StepLimited => "StepLimited",
            Self::ScaledToZero => "ScaledToZero",
            Self::AtMaximum => "AtMaximum",
            Self::AtMinimum => "AtMinimum",
            Self::Frozen => "Frozen",
        }
    }
}

/// A number for a message, to two digits: messages must not change with every sample.
pub(super) fn about(value: f64) -> String {
    if !value.is_finite() {
        return "unknown".into();
    }
    if value == 0.0 {
        return "0".into();
    }
    let digits = value.abs().log10().floor() as i32;
    if digits < 1 {
        return format!("{value:.*}", usize::try_from(1 - digits).unwrap_or(1));
    }
    let unit = 10f64.powi(digits - 1);
    format!("{:.0}", (value / unit).round() * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_messages_have_two_digits() {
        for (value, text) in [(0.0, "0"), (0.123, "0.12"), (4.26, "4.3"), (12.4, "12"), (8249.0, "8200")] {
            assert_eq!(about(value), text);
        }
    }
}
