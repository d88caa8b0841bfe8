//! Does a live object hold everything that is asked for? Fields that others add are theirs and do not count; so an
//! object at rest is never written, and a hand that changed one of our fields is put right.

use hypic_crds::Amount;
use serde_json::Value;

/// Keys by which items of a list are told apart, as the API server does.
const KEYS: [&str; 4] = ["name", "mountPath", "uid", "tier"];

/// The first field of `wanted` that `live` lacks or has otherwise, as a path.
pub fn difference(live: &Value, wanted: &Value) -> Option<String> {
    let mut path = String::new();
    (!covers(live, wanted, &mut path)).then_some(path)
}

fn covers(live: &Value, wanted: &Value, path: &mut String) -> bool {
    let end = path.len();
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => {
            for (key, wanted) in wanted {
                path.push('.');
                path.push_str(key);
                let held = live.get(key).map_or_else(|| is_empty(wanted), |live| covers(live, wanted, path));
                if !held {
                    return false;
                }
                path.truncate(end);
            }
            true
        }
        (Value::Array(live), Value::Array(wanted)) => lists(live, wanted, path),
        (Value::String(live), Value::String(wanted)) => live == wanted || same_amount(live, wanted, path),
        (live, wanted) => live == wanted,
    }
}

fn lists(live: &[Value], wanted: &[Value], path: &mut String) -> bool {
    let end = path.len();
    let key =
        KEYS.iter().find(|key| !wanted.is_empty() && wanted.iter().all(|item| item.get(**key).is_some()));
    let Some(key) = key else {
        return live.len() == wanted.len()
            && live.iter().zip(wanted).enumerate().all(|(number, (live, wanted))| {
                path.push_str(&format!("[{number}]"));
                let held = covers(live, wanted, path);
                if held {
                    path.truncate(end);
                }
                held
            });
    };
    wanted.iter().all(|wanted| {
        path.push_str(&format!("[{key}={}]", wanted[*key]));
        let held = live.iter().find(|live| live.get(key) == wanted.get(key));
        let held = held.is_some_and(|live| covers(live, wanted, path));
        if held {
            path.truncate(end);
        }
        held
    })
}

/// The API server drops empty maps, lists and texts.
fn is_empty(wanted: &Value) -> bool {
    match wanted {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// The API server writes quantities in a form of its own: `1000m` becomes `1`.
fn same_amount(live: &str, wanted: &str, path: &str) -> bool {
    let quantity =
        [".requests.", ".limits.", ".sizeLimit", ".storage"].iter().any(|part| path.contains(part));
    quantity && Amount::from(live).millis().is_some_and(|live| Amount::from(wanted).millis() == Some(live))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_others_add_is_theirs() {
        let live = json!({"a": 1, "more": 2, "list": [{"name": "x", "v": 1, "own": 3}, {"name": "y"}], "plain": [1, 2]});
        assert_eq!(
            difference(&live, &json!({"a": 1, "list": [{"name": "x", "v": 1}], "plain": [1, 2]})),
            None
        );
        assert_eq!(difference(&live, &json!({"env": [], "volumes": {}})), None);
    }

    #[test]
    fn the_first_difference_is_named() {
        let live = json!({"spec": {"replicas": 3, "list": [{"name": "x", "v": 1}], "args": ["a", "b"]}});
        for (wanted, path) in [
            (json!({"spec": {"replicas": 2}}), ".spec.replicas"),
            (json!({"spec": {"list": [{"name": "x", "v": 2}]}}), ".spec.list[name=\"x\"].v"),
            (json!({"spec": {"list": [{"name": "z"}]}}), ".spec.list[name=\"z\"]"),
            (json!({"spec": {"args": ["a"]}}), ".spec.args"),
            (json!({"spec": {"args": ["a", "c"]}}), ".spec.args[1]"),
            (json!({"spec": {"missing": true}}), ".spec.missing"),
        ] {
            assert_eq!(difference(&live, &wanted).as_deref(), Some(path));
        }
    }

    #[test]
    fn quantities_are_compared_as_such_and_only_where_they_stand() {
        let of = |text: &str| json!({"resources": {"limits": {"cpu": text}}});
        assert_eq!(difference(&of("1"), &of("1000m")), None);
        assert_eq!(difference(&of("1Gi"), &of("1024Mi")), None);
        assert!(difference(&of("500m"), &of("900m")).is_some());
        assert!(difference(&json!({"tag": "1"}), &json!({"tag": "1000m"})).is_some());
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(json!(true)),
            (0..9).prop_map(|n| json!(n)),
            "[a-z]{1,3}".prop_map(|s| json!(s))
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
                prop::collection::btree_map("[a-z]{1,2}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn everything_covers_itself(value in any_json()) {
            prop_assert_eq!(difference(&value, &value), None);
        }

        #[test]
        fn a_field_taken_away_is_missed(mut value in prop::collection::btree_map("[a-z]{1,2}", 1..9, 1..5)) {
            let wanted = json!(value);
            let key = value.keys().next().cloned().unwrap_or_default();
            value.remove(&key);
            prop_assert_eq!(difference(&json!(value), &wanted), Some(format!(".{key}")));
        }
    }
}
