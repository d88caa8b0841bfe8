//! The committed YAML is what the types say.

use std::path::Path;

#[test]
fn the_charts_definitions_are_up_to_date() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/hypic-crds/templates");
    for (name, text) in hypic_crds::yaml::files() {
        let committed = std::fs::read_to_string(dir.join(&name)).unwrap_or_default();
        assert_eq!(committed, text.expect("YAML"), "{name} is old: run 'cargo xtask crds'");
    }
}

#[test]
fn definitions_are_small_enough_to_be_applied_by_any_client() {
    // kubectl apply keeps a copy in an annotation, and annotations may have 256 KiB in all.
    for definition in hypic_crds::definitions() {
        let size = serde_json::to_vec(&definition).expect("JSON").len();
        assert!(size < 64 << 10, "{}: {size} bytes", definition.spec.names.kind);
    }
}
