//! Dashboards and rules over what a Prometheus scrapes from a real fleet.

use serde_json::json;

use crate::support::{
    Fleet, Namespace, Traffic, cluster, new_documents, panels, question, scatter, wait_for,
};

#[test]
fn every_query_of_dashboards_and_rules_has_data() {
    let namespace = Namespace::new("e2e-panels");
    let mut spec = cluster("demo", 1, 2);
    spec["spec"]["nodePools"].as_array_mut().unwrap().push(scatter());
    spec["spec"]["cacheTiers"].as_array_mut().unwrap().push(json!({"tier": "Disk", "capacity": "256Mi"}));
    let fleet = Fleet::start(&namespace, &spec);
    let cold = Traffic::start(&fleet.address(), 1, new_documents);
    let warm = Traffic::start(&fleet.address(), 1, question);
    wait_for("a scatter worker builds", 120, || {
        match fleet.metric("scatter", "hypic_agent_build_orders_total")? {
            0.0 => Err("no build order was begun".to_owned()),
            _ => Ok(()),
        }
    });
    // hypic-tiny ends its answers after a word; gaps between tokens need more of them.
    let longer = json!({
        "model": "hypic-tiny", "max_tokens": 20, "ignore_eos": true,
        "messages": [{"role": "user", "content": "What is the badge of Mira?"}],
    });
    wait_for("every query has data", 120, || {
        fleet.client().chat(&longer).map_err(|error| format!("{error:#}"))?;
        let report = panels(300);
        report.map(drop).map_err(|report| {
            report.lines().filter(|line| line.contains("FAULT")).collect::<Vec<_>>().join("\n")
        })
    });
    cold.all_answered(None);
    warm.all_answered(None);
}
