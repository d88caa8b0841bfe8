//! Stop strings over a stream of text.

/// Finds the first stop string, wherever the text is split. Text that may be the start of one is held back.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    hit: bool,
}

impl StopMatcher {
    /// Watches for `stops`; empty strings are ignored.
    pub fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self { stops, held: String::new(), hit: false }
    }

    /// Takes the next text and returns what is surely before any stop string.
    pub fn push(&mut self, text: &str) -> String {
        if self.hit {
            return String::new();
        }
        if self.stops.is_empty() {
            return text.to_owned();
        }
        self.held.push_str(text);
        // The earliest occurrence wins, whichever string it is of.
        if let Some(at) = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.hit = true;
            let mut held = std::mem::take(&mut self.held);
            held.truncate(at);
            return held;
        }
        let keep = self.stops.iter().map(|stop| partial_suffix(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, rest)
    }

    /// The end of the answer: what was held back was no stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Whether a stop string was found.
    pub fn hit(&self) -> bool {
        self.hit
    }
}

/// Bytes at the end of `text` that are a proper start of `tag`.
pub(super) fn partial_suffix(text: &str, tag: &str) -> usize {
    let longest = text.len().min(tag.len().saturating_sub(1));
    (1..=longest)
        .rev()
        .find(|&len| tag.is_char_boundary(len) && text.as_bytes().ends_with(&tag.as_bytes()[..len]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut matcher = StopMatcher::new(&stops);
        let mut text: String = pieces.iter().map(|piece| matcher.push(piece)).collect();
        text.push_str(&matcher.finish());
        (text, matcher.hit())
    }

    #[test]
    fn a_stop_string_over_a_split_is_found() {
        assert_eq!(run(&["END"], &["one E", "N", "D two"]), ("one ".to_owned(), true));
    }

    #[test]
    fn a_near_miss_is_given_out_whole() {
        assert_eq!(run(&["END"], &["one E", "N", "T two EN"]), ("one ENT two EN".to_owned(), false));
    }

    #[test]
    fn the_earliest_of_several_wins() {
        assert_eq!(run(&["bc", "b"], &["a", "b", "c"]), ("a".to_owned(), true));
        assert_eq!(run(&["ab", "aab"], &["a", "a", "b"]), (String::new(), true));
    }

    #[test]
    fn many_byte_characters_are_never_cut() {
        assert_eq!(run(&["é!"], &["caf", "é", "?"]), ("café?".to_owned(), false));
    }
}
