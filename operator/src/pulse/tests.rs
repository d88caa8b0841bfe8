//! The pulse against an API server and routers that are made up; no clock but the tests' own.

mod rounds;
mod scaling;
mod telling;

use std::sync::Mutex;

use futures::FutureExt;
use hypic_wire::tls::Security;

use super::*;
use crate::pulse::ask::{Answer, Told};
use crate::scaling::{Counters, Unreachable, Worker};

/// One HypicScatterPool at an API server.
#[derive(Default)]
struct Server(Mutex<Stored>);

#[derive(Default)]
struct Stored {
    replicas: i32,
    owner: Option<String>,
    /// Takes the number between the read and the write.
    rival: Option<&'static str>,
    away: bool,
    reads: usize,
    writes: Vec<i32>,
    news: Vec<News>,
}

impl Server {
    fn of(replicas: i32) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Stored { replicas, ..Stored::default() })))
    }

    fn see<T>(&self, look: impl FnOnce(&mut Stored) -> T) -> T {
        look(&mut self.0.lock().unwrap())
    }

    fn news(&self) -> Vec<(&'static str, String)> {
        self.see(|stored| stored.news.iter().map(|news| (news.reason, news.note.clone())).collect())
    }

    fn answer<T>(&self, target: &Target, answer: impl FnOnce(&mut Stored) -> T) -> Result<T, ActuateError> {
        assert_eq!((target.namespace.as_str(), target.object.as_str()), ("ns", "fleet-scatter"));
        self.see(|stored| if stored.away { None } else { Some(answer(stored)) })
            .ok_or_else(|| ActuateError::Wait { object: target.object.clone() })
    }
}

impl Actuator for Server {
    fn read<'a>(&'a self, target: &'a Target) -> Doing<'a, Replicas> {
        async move {
            self.answer(target, |stored| {
                stored.reads += 1;
                Replicas { replicas: stored.replicas, scaled_by: stored.owner.clone() }
            })
        }
        .boxed()
    }

    fn set<'a>(&'a self, target: &'a Target, replicas: i32) -> Doing<'a, Written> {
        async move {
            self.answer(target, |stored| {
                if let Some(rival) = stored.rival.take() {
                    stored.owner = Some(rival.to_owned());
                    return Written::Taken { by: rival.to_owned() };
                }
                assert_eq!(stored.owner, None, "a number of others is not touched");
                stored.replicas = replicas;
                stored.writes.push(replicas);
                Written::Done
            })
        }
        .boxed()
    }

    fn publish<'a>(&'a self, target: &'a Target, news: &'a News) -> Doing<'a, ()> {
        async move { self.answer(target, |stored| stored.news.push(news.clone())) }.boxed()
    }
}

fn key() -> ClusterKey {
    ClusterKey { namespace: "ns".into(), name: "fleet".into() }
}

/// The resource's defaults between these bounds.
fn policy(min_replicas: i32, max_replicas: i32) -> Scaling {
    let policy = serde_json::json!({"minReplicas": min_replicas, "maxReplicas": max_replicas,
        "scaleUp": {"stabilizationWindowSeconds": 0, "workers": 4, "percent": 100, "periodSeconds": 15},
        "scaleDown": {"stabilizationWindowSeconds": 300, "workers": 1, "percent": 100, "periodSeconds": 60}});
    serde_json::from_value(policy).unwrap()
}

/// Two routers, one pool of workers of 1000 tokens/s that are up at once, and a reconciler that sees every change.
struct World {
    server: Arc<Server>,
    pulses: Pulses,
    watch: Watch,
    policy: Scaling,
    routers: Vec<&'static str>,
    silent: Vec<&'static str>,
    /// Tokens per second of each router, and how many of them are cold.
    traffic: (u64, u64),
    counted: (u64, u64),
    /// The reconciler is slow: it registers nothing new.
    blind: bool,
    now: u64,
}

impl World {
    fn new(policy: Scaling, replicas: i32) -> Self {
        let world = Self {
            server: Server::of(replicas),
            pulses: Pulses::default(),
            watch: Watch::new(1),
            policy,
            routers: vec!["a", "b"],
            silent: Vec::new(),
            traffic: (0, 0),
            counted: (0, 0),
            blind: false,
            now: 1000,
        };
        world.reconcile();
        world
    }

    fn reconcile(&self) {
        let (replicas, scaled_by) = self.server.see(|stored| (stored.replicas, stored.owner.clone()));
        let pool = ScalingPool {
            pool: "scatter".into(),
            object: "fleet-scatter".into(),
            policy: self.policy.clone(),
            replicas,
            ready: replicas,
            scaled_by,
        };
        let router = |uid: &&str| RouterPod { uid: (*uid).into(), address: format!("{uid}:7400") };
        let routers = self.routers.iter().map(router).collect();
        let fleet = Fleet {
            uid: "cluster-uid".into(),
            routers,
            channels: Arc::new(Channels::new(Security::Plain)),
            pools: vec![pool],
        };
        self.pulses.register(key(), fleet);
    }

    fn answer(&self, router: &str) -> Answer {
        let agent = |name: String, role| {
            let worker = Worker {
                id: AgentId(name.clone()),
                role,
                usable: true,
                build_tokens_per_second: 1000.0,
                builds: 0,
            };
            let pulse = AgentPulse {
                id: AgentId(name),
                role,
                usable: true,
                index_partial: 0,
                running: (self.now % 7) as u32,
                queued: 0,
                builds: 0,
                facts: None,
            };
            (pulse, worker)
        };
        let replicas = self.server.see(|stored| stored.replicas);
        let scatter =
            (0..replicas).map(|worker| agent(format!("fleet-scatter-{worker}"), AgentRole::Scatter));
        let combine = std::iter::once(agent("fleet-combine-0".into(), AgentRole::Combine));
        let (agents, workers) = combine.chain(scatter).unzip();
        let counters = Counters {
            incarnation: hypic_domain::id::Incarnation(1),
            uptime_seconds: self.now as f64,
            requests: self.counted.0 / 1000,
            cold_requests: self.counted.1 / 1000,
            segment_tokens: self.counted.0,
            cold_tokens: self.counted.1,
            cold_first_token_ms_counts: vec![0; 16],
            queue_age_seconds: 0.0,
            workers,
        };
        let told = Told { counters, version: (3, 9), agents };
        let told = if self.silent.contains(&router) { Err(Unreachable("silent".into())) } else { Ok(told) };
        Answer { router: router.to_owned(), told }
    }

    /// One round, five seconds after the last.
    async fn round(&mut self) -> Pulse {
        self.now += 5;
        self.counted.0 += 5 * self.traffic.0;
        self.counted.1 += 5 * self.traffic.1;
        if !self.blind {
            self.reconcile();
        }
        let registered = self.pulses.registered().remove(&key()).unwrap();
        let answers = self.routers.iter().map(|router| self.answer(router)).collect();
        let now = Duration::from_secs(self.now);
        self.watch.beat(&key(), &registered, answers, &*self.server, now).await
    }

    async fn rounds(&mut self, count: usize) -> Pulse {
        for _ in 1..count {
            self.round().await;
        }
        self.round().await
    }

    fn replicas(&self) -> i32 {
        self.server.see(|stored| stored.replicas)
    }

    fn writes(&self) -> Vec<i32> {
        self.server.see(|stored| stored.writes.clone())
    }
}
