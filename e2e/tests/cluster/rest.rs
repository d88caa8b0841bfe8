//! A fleet that nobody asks for anything: nothing is written.

use std::thread::sleep;
use std::time::Duration;

use crate::support::{AuditLog, Fleet, Namespace, OPERATOR, SYSTEM, cluster, scatter, wait_for};

#[test]
fn at_rest_the_operator_writes_nothing_but_its_lease() {
    let namespace = Namespace::new("e2e-rest");
    let mut spec = cluster("demo", 2, 1);
    spec["spec"]["nodePools"].as_array_mut().unwrap().push(scatter());
    let fleet = Fleet::start(&namespace, &spec);
    wait_for("routers have told of index and demand", 60, || {
        fleet.holds("IndexConsistent").and_then(|()| fleet.holds("ScatterScaling"))
    });
    wait_for("the model's status tells of it", 60, || {
        let model = namespace.get("hypicmodels", "hypic-tiny")?;
        if model["status"]["identity"].is_string() { Ok(()) } else { Err(model["status"].to_string()) }
    });
    // What was told in the same moment is written a moment later.
    sleep(Duration::from_secs(10));
    let log = AuditLog::open();
    sleep(Duration::from_secs(120));
    assert_eq!(log.writes(OPERATOR, &namespace.name), Vec::<String>::new());
    let home = log.writes(OPERATOR, SYSTEM);
    assert!(
        home.len() > 10 && home.iter().all(|write| write == "update leases hypic-operator "),
        "{home:#?}"
    );
}
