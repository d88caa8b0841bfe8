//! Events, as the API server takes them.

use kube::runtime::events::{Event, EventType};

/// An event. The API server counts those of one reason and action as one and keeps the words of the first: so the
/// action has a digest of the words, and only what is the same again is counted.
pub fn event(type_: EventType, reason: &str, action: &str, note: &str) -> Event {
    let digest = blake3::hash(note.as_bytes()).to_hex();
    let action: String = action.chars().take(110).collect();
    Event {
        type_,
        reason: reason.to_owned(),
        // The API server takes 1 KiB.
        note: Some(note[..note.floor_char_boundary(1000)].to_owned()),
        action: format!("{action}-{}", &digest[..8]),
        secondary: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_words_are_another_event_and_all_fits() {
        let of = |note: &str| event(EventType::Normal, "Scaled", &"Scale".repeat(40), note);
        assert_eq!(of("0 to 1").action, of("0 to 1").action);
        assert_ne!(of("0 to 1").action, of("0 to 2").action);
        let long = of(&"é".repeat(1000));
        assert!(long.action.len() <= 128 && long.note.is_some_and(|note| note.len() <= 1000));
    }
}
