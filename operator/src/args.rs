//! Flags and environment.

use std::time::Duration;

use clap::Parser;
use hypic_wire::address::HostPort;

use crate::plan::Defaults;

/// Runs HypicClusters on a Kubernetes cluster.
#[derive(Clone, Debug, Parser)]
#[command(name = "hypic-operator", version)]
pub struct Args {
    /// `host:port` of probes and metrics.
    #[arg(long, env = "HYPIC_OPERATOR_LISTEN", default_value = "[::]:8080")]
    pub listen: HostPort,
    /// Image of routers and agents.
    #[arg(long, env = "HYPIC_IMAGE")]
    pub image: String,
    /// When it is pulled: Always, IfNotPresent or Never.
    #[arg(long, env = "HYPIC_IMAGE_PULL_POLICY", value_parser = ["Always", "IfNotPresent", "Never"])]
    pub image_pull_policy: Option<String>,
    /// Secret with which it is pulled, in the fleet's namespace.
    #[arg(long = "image-pull-secret", env = "HYPIC_IMAGE_PULL_SECRETS", value_delimiter = ',')]
    pub image_pull_secrets: Vec<String>,
    /// The operator's own namespace.
    #[arg(long, env = "HYPIC_NAMESPACE")]
    pub namespace: String,
    /// This replica's name in the Lease: its pod's name.
    #[arg(long, env = "HYPIC_IDENTITY")]
    pub identity: String,
    /// Namespaces whose clusters are run; all without it.
    #[arg(long, env = "HYPIC_WATCH_NAMESPACES", value_delimiter = ',')]
    pub watch_namespaces: Vec<String>,
    /// Name of the Lease that replicas compete for.
    #[arg(long, env = "HYPIC_LEASE_NAME", default_value = "hypic-operator")]
    pub lease_name: String,
    /// Seconds between two questions to routers.
    #[arg(long, env = "HYPIC_SIGNAL_SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=300))]
    pub signal_seconds: u64,
    /// Routers and agents carry `prometheus.io/*` annotations.
    #[arg(long, env = "HYPIC_POD_SCRAPE_ANNOTATIONS", default_value_t = true, action = clap::ArgAction::Set)]
    pub pod_scrape_annotations: bool,
    /// Clusters that are reconciled at once.
    #[arg(long, env = "HYPIC_CONCURRENCY", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    pub concurrency: u16,
    /// Send spans to this OTLP endpoint, such as http://collector:4317.
    #[arg(long, env = "HYPIC_OTLP_ENDPOINT")]
    pub otlp: Option<String>,
    /// Log filter, as of tracing-subscriber's EnvFilter.
    #[arg(long, env = "HYPIC_LOG_FILTER", default_value = "info")]
    pub log: String,
}

impl Args {
    /// What the operator gives every fleet.
    pub fn defaults(&self) -> Defaults {
        Defaults {
            image: self.image.clone(),
            pull_policy: self.image_pull_policy.clone(),
            pull_secrets: self.image_pull_secrets.clone(),
            scrape_annotations: self.pod_scrape_annotations,
            namespace: self.namespace.clone(),
        }
    }

    /// Between two questions to routers.
    pub fn signal(&self) -> Duration {
        Duration::from_secs(self.signal_seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_charts_command_line_is_taken() {
        let args = Args::try_parse_from([
            "hypic-operator",
            "--listen=[::]:8080",
            "--image=hypic.dev/hypic:0.1.0",
            "--image-pull-policy=IfNotPresent",
            "--image-pull-secret=one",
            "--image-pull-secret=two",
            "--namespace=hypic-system",
            "--identity=hypic-operator-0",
            "--lease-name=hypic-operator",
            "--watch-namespaces=a,b",
            "--signal-seconds=5",
            "--pod-scrape-annotations=false",
            "--log=info",
        ])
        .expect("valid flags");
        assert_eq!(args.watch_namespaces, ["a", "b"]);
        assert_eq!(args.image_pull_secrets, ["one", "two"]);
        assert!(!args.pod_scrape_annotations);
    }
}
