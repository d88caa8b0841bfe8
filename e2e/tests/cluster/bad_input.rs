//! What users get wrong: refused when it is applied, or told in a condition that names the field.

use serde_json::{Value, json};

use crate::support::{Fleet, Namespace, cluster, items, kubectl, model, question, scatter, text, wait_for};

/// Changes one field of a good object, given by its path.
fn with(object: &Value, path: &str, value: Value) -> Value {
    let mut changed = object.clone();
    *changed.pointer_mut(path).unwrap_or_else(|| panic!("no {path}")) = value;
    changed
}

#[test]
fn what_one_object_can_break_alone_is_refused_with_its_field() {
    let namespace = Namespace::new("e2e-refused");
    let mut good = cluster("demo", 1, 1);
    good["spec"]["nodePools"].as_array_mut().unwrap().push(scatter());
    namespace.try_create(&good).unwrap();
    let tiers = |tiers: &[&str]| -> Value {
        tiers.iter().map(|tier| json!({"tier": tier, "capacity": "64Mi"})).collect()
    };
    for (path, value, words) in [
        ("/metadata/name", json!("a.b"), ["DNS label", "begins with a letter"]),
        ("/metadata/name", json!("a23456789-123456789-123456789-123"), ["at most 32", "HypicCluster"]),
        (
            "/spec/nodePools",
            json!([good["spec"]["nodePools"][1].clone()]),
            ["spec.nodePools", "role Combine"],
        ),
        ("/spec/nodePools/0/role", json!("Builder"), ["spec.nodePools[0].role", "Builder"]),
        ("/spec/nodePools/0/slots", json!(0), ["spec.nodePools[0].slots", "greater than or equal to 1"]),
        ("/spec/nodePools/0/replicas", json!(0), ["spec.nodePools[0].replicas", "at least one replica"]),
        ("/spec/nodePools/0/engineMemory", json!("0"), ["spec.nodePools[0].engineMemory", "over 0"]),
        ("/spec/nodePools/0/engineMemory", json!("much"), ["spec.nodePools[0].engineMemory", "much"]),
        ("/spec/nodePools/0/engineMemory", json!("1e99"), ["spec.nodePools[0].engineMemory", "under 1Pi"]),
        ("/spec/nodePools/1/modelRef", json!("other"), ["spec.nodePools", "same modelRef"]),
        (
            "/spec/nodePools/1/scaling/minReplicas",
            json!(3),
            ["scaling.minReplicas", "at most scaling.maxReplicas"],
        ),
        ("/spec/cacheTiers", tiers(&["Device", "Host", "Tape"]), ["spec.cacheTiers[2].tier", "Tape"]),
        (
            "/spec/cacheTiers",
            tiers(&["Device", "Host", "Object"]),
            ["spec.cacheTiers", "Object tier does not exist"],
        ),
        ("/spec/cacheTiers", tiers(&["Host", "Device"]), ["spec.cacheTiers", "order Device, Host"]),
        ("/spec/security", json!({}), ["spec.security", "exactly one of tenantsSecretRef and access"]),
        ("/spec/router/replicas", json!(0), ["spec.router.replicas", "greater than or equal to 1"]),
    ] {
        let refusal =
            namespace.try_create(&with(&good, path, value.clone())).expect_err(&format!("{path}: {value}"));
        assert!(words.iter().all(|word| refusal.contains(word)), "{path}: {value}: {refusal}");
    }
    let misspelt = with(&good, "/spec/router", json!({"replica": 1}));
    let refusal = namespace.try_create(&misspelt).expect_err("a misspelt field");
    assert!(refusal.contains("spec.router.replica"), "{refusal}");

    for (path, value, words) in [
        ("/spec/source", json!({}), ["spec.source", "exactly one of image and pvc"]),
        ("/spec/source/image/path", json!("models"), ["spec.source.image.path", "models"]),
        ("/spec/segmentMinTokens", json!(2048), ["segmentMinTokens", "at most segmentMaxTokens"]),
        ("/spec/segmentMinTokens", json!(8), ["seamTokens", "under segmentMinTokens"]),
    ] {
        let refusal = namespace
            .try_create(&with(&model(), path, value.clone()))
            .expect_err(&format!("{path}: {value}"));
        assert!(words.iter().all(|word| refusal.contains(word)), "{path}: {value}: {refusal}");
    }

    namespace.apply(&model()).unwrap();
    namespace.apply(&good).unwrap();
    for (path, value, word) in [
        ("/spec/nodePools/0/role", json!("Scatter"), "role cannot be changed"),
        ("/spec/nodePools/0/modelRef", json!("other"), "modelRef cannot be changed"),
    ] {
        let refusal = namespace.apply(&with(&good, path, value)).expect_err(path);
        assert!(refusal.contains(word) && refusal.contains("spec.nodePools[0]"), "{path}: {refusal}");
    }
    let moved = with(&model(), "/spec/source/image/path", json!("/models/other"));
    let refusal = namespace.apply(&moved).expect_err("the source of a model");
    assert!(refusal.contains("spec.source") && refusal.contains("cannot be changed"), "{refusal}");
}

#[test]
fn what_needs_a_second_look_is_told_in_conditions_and_others_go_on() {
    let namespace = Namespace::new("e2e-told");
    let healthy = Fleet::start(&namespace, &cluster("healthy", 1, 1));

    let mut unknown = cluster("unknown", 1, 1);
    unknown["spec"]["nodePools"][0]["modelRef"] = json!("later");
    let mut keyless = cluster("keyless", 1, 1);
    keyless["spec"]["security"] = json!({"tenantsSecretRef": {"name": "tenants"}});
    let mut pathless = cluster("pathless", 1, 1);
    pathless["spec"]["nodePools"][0]["modelRef"] = json!("nowhere");
    let mut imageless = cluster("imageless", 1, 1);
    imageless["spec"]["image"] = json!({"name": "hypic.dev/none:1", "pullPolicy": "Never"});
    let mut huge = cluster("huge", 1, 1);
    huge["spec"]["nodePools"][0]["resources"] =
        json!({"requests": {"memory": "64Ti"}, "limits": {"memory": "64Ti"}});
    let mut cramped = cluster("cramped", 1, 1);
    cramped["spec"]["nodePools"][0]["resources"] = json!({"limits": {"memory": "128Mi"}});
    let mut nowhere = model();
    nowhere["metadata"]["name"] = json!("nowhere");
    nowhere["spec"]["source"]["image"]["path"] = json!("/models/nowhere");
    namespace.apply(&nowhere).unwrap();

    let bad = [&unknown, &keyless, &pathless, &imageless, &huge, &cramped];
    let fleets: Vec<Fleet<'_>> = bad.iter().map(|spec| Fleet::apply(&namespace, spec)).collect();
    let [unknown, keyless, pathless, imageless, huge, cramped] = &fleets[..] else { panic!("six") };
    let told = |fleet: &Fleet<'_>, kind: &str, status: &str, reason: &str, words: &[&str]| {
        let what = format!("{}: {kind} is {status}: {reason}", fleet.name);
        let message = wait_for(&what, 90, || fleet.is(kind, status, reason));
        assert!(words.iter().all(|word| message.contains(word)), "{}: {message}", fleet.name);
    };
    told(unknown, "Ready", "False", "ModelNotFound", &["spec.nodePools[0].modelRef", "'later'"]);
    told(unknown, "ModelsLoaded", "False", "ModelNotFound", &["'later'"]);
    told(keyless, "Ready", "False", "SecretNotFound", &["spec.security.tenantsSecretRef", "'tenants'"]);
    told(pathless, "ModelsLoaded", "False", "LoadFailed", &["pathless-", "/models/nowhere"]);
    told(pathless, "Ready", "False", "ContainerFailed", &["/models/nowhere"]);
    told(imageless, "Ready", "False", "ImageUnavailable", &["hypic.dev/none:1", "imageless-"]);
    told(huge, "Ready", "False", "Unschedulable", &["huge-combine-0", "Insufficient memory"]);
    told(cramped, "Ready", "False", "MemoryLimitTooLow", &["spec.nodePools[0].resources.limits.memory"]);
    let events = namespace.events("HypicCluster").unwrap();
    for reason in [
        "ModelNotFound",
        "SecretNotFound",
        "ContainerFailed",
        "ImageUnavailable",
        "Unschedulable",
        "MemoryLimitTooLow",
    ] {
        assert!(
            events.iter().any(|event| event.starts_with(&format!("Warning {reason}"))),
            "no event {reason}: {events:#?}"
        );
    }

    // What was missing comes: nobody has to touch the clusters again.
    let mut later = model();
    later["metadata"]["name"] = json!("later");
    namespace.apply(&later).unwrap();
    let nobody = json!({"tenants.json": "{}"});
    namespace.apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tenants"}, "stringData": nobody})).unwrap();
    unknown.wait_ready();
    keyless.wait_ready();
    imageless.patch(json!({"image": null})).unwrap();
    imageless.wait_ready();

    healthy.wait_ready();
    healthy.answers(&question()).unwrap();
}

#[test]
fn a_pool_of_gpus_says_what_its_nodes_lack() {
    let namespace = Namespace::new("e2e-gpus");
    let mut two = cluster("two", 1, 1);
    two["spec"]["nodePools"][0]["gpusPerAgent"] = json!(2);
    // What the sample's agents may take is too little for those of GPUs.
    two["spec"]["nodePools"][0].as_object_mut().unwrap().remove("resources");
    let two = Fleet::apply(&namespace, &two);
    let told = |reason: &str, words: &[&str]| {
        let message = wait_for(&format!("Ready is {reason}"), 90, || two.is("Ready", "False", reason));
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    };
    told("Unschedulable", &["two-combine-0", "Insufficient nvidia.com/gpu"]);

    // A node that says it has some, without a driver.
    let nodes: Value = serde_json::from_str(&kubectl(&["get", "nodes", "--output=json"]).unwrap()).unwrap();
    let node = text(&items(&nodes)[0]["metadata"]["name"]).to_owned();
    let change = |change: Value| {
        let change = json!([change]).to_string();
        let words = ["patch", "node", &node, "--subresource=status", "--type=json", "--patch", &change];
        kubectl(&words).unwrap();
    };
    let path = "/status/capacity/nvidia.com~1gpu";
    change(json!({"op": "add", "path": path, "value": "2"}));
    told("ContainerFailed", &["two-combine-0", "no device"]);
    change(json!({"op": "remove", "path": path}));
}
