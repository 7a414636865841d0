//! The text that `/metrics` answers with, in the OpenMetrics form that Prometheus scrapes.
//!
//! Names follow the conventions of Prometheus ("Metric and label naming"): the program's name first,
//! base units last (seconds, bytes, ratio), `_total` at the end of counts. A figure that is not
//! known is left out rather than zero. Labels are bounded by the members and the counters that a
//! status has.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use zbelastic_api::{JobStatus, MemberState, MemberStatus, StatusReport};

use crate::dashboard::Dashboard;
use crate::message::SourceState;

/// Names of all metrics as a scrape shows them, for dashboards that are checked against it.
pub const METRIC_NAMES: &[&str] = &[
    "zbelastic_up",
    "zbelastic_run_step",
    "zbelastic_run_steps",
    "zbelastic_loss_nats",
    "zbelastic_gradient_norm",
    "zbelastic_learning_rate",
    "zbelastic_step_seconds",
    "zbelastic_tokens_per_second",
    "zbelastic_left_seconds",
    "zbelastic_bubble_ratio",
    "zbelastic_goodput_ratio",
    "zbelastic_mfu_ratio",
    "zbelastic_workers",
    "zbelastic_price_per_hour",
    "zbelastic_price_left",
    "zbelastic_member_up",
    "zbelastic_member_memory_bytes",
    "zbelastic_member_memory_used_bytes",
    "zbelastic_member_memory_planned_bytes",
    "zbelastic_member_round_trip_seconds",
    "zbelastic_plan_generation",
    "zbelastic_raft_term",
    "zbelastic_voters",
    "zbelastic_voters_reachable",
    "zbelastic_has_quorum",
    "zbelastic_commit_latency_p50_seconds",
    "zbelastic_commit_latency_max_seconds",
    "zbelastic_verdict_wait_p50_seconds",
    "zbelastic_verdict_wait_max_seconds",
    "zbelastic_checkpoint_step",
    "zbelastic_checkpoint_age_seconds",
    "zbelastic_checkpoint_copies",
    "zbelastic_checkpoint_bytes",
    "zbelastic_activity_total",
    "zbelastic_refused_total",
    "zbelastic_uptime_seconds",
    "zbelastic_spans_dropped_total",
];

type FloatGauge = Gauge<f64, AtomicU64>;
type Labels = Vec<(&'static str, String)>;

/// The metrics of a dashboard, as text.
///
/// # Panics
/// Never: a text takes any number of lines.
#[must_use]
pub fn metrics_text(dashboard: &Dashboard) -> String {
    let mut registry = MetricRegistry(Registry::with_prefix("zbelastic"));
    let is_up = matches!(dashboard.source(), SourceState::Live);
    registry.gauge("up", "Whether the cluster answers", Some(f64::from(is_up)));
    if let Some(status) = dashboard.status() {
        if let Some(job) = &status.job {
            add_job(&mut registry, job);
        }
        add_head(&mut registry, dashboard);
        add_plan(&mut registry, status);
        add_members(&mut registry, &status.members);
        add_group(&mut registry, status);
        add_checkpoint(&mut registry, status);
    }
    if let Some(total) = dashboard.spans_dropped() {
        let dropped = Counter::<u64>::default();
        dropped.inc_by(total);
        let help = "Spans of traces that their collector did not take since this command began";
        registry.0.register("spans_dropped", help, dropped);
    }
    let mut text = String::new();
    encode(&mut text, &registry.0).expect("a text takes any number of lines");
    text
}

/// A registry that is filled for one scrape.
struct MetricRegistry(Registry);

impl MetricRegistry {
    fn gauge(&mut self, name: &str, help: &str, value: Option<f64>) {
        self.gauge_in(name, help, None, value);
    }

    /// A gauge whose name ends with a unit.
    fn gauge_in(&mut self, name: &str, help: &str, unit: Option<Unit>, value: Option<f64>) {
        let Some(value) = value else { return };
        let gauge = FloatGauge::default();
        gauge.set(value);
        match unit {
            Some(unit) => self.0.register_with_unit(name, help, unit, gauge),
            None => self.0.register(name, help, gauge),
        }
    }

    /// A gauge with labels.
    fn family(&mut self, name: &str, help: &str, values: Vec<(Labels, f64)>) {
        let family = Family::<Labels, FloatGauge>::default();
        for (labels, value) in values {
            family.get_or_create(&labels).set(value);
        }
        self.0.register(name, help, family);
    }
}

fn seconds(ms: f64) -> f64 {
    ms / 1e3
}

fn add_job(registry: &mut MetricRegistry, job: &JobStatus) {
    registry.gauge("run_step", "Steps that are sealed", Some(job.step as f64));
    registry.gauge("run_steps", "Steps of the run", Some(job.step_count as f64));
    registry.gauge("loss_nats", "Loss of the last sealed step, in nats a token", job.loss);
    registry.gauge("gradient_norm", "Norm of its gradient before clipping", job.gnorm);
    registry.gauge("learning_rate", "Its learning rate", job.lr);
    let step = job.step_ms.map(seconds);
    registry.gauge_in("step", "Duration of a step lately", Some(Unit::Seconds), step);
    registry.gauge("tokens_per_second", "Tokens a second lately", job.tokens_per_s);
    registry.gauge_in("left", "Time to the end of the run", Some(Unit::Seconds), job.eta_s);
}

fn add_head(registry: &mut MetricRegistry, dashboard: &Dashboard) {
    let Some(head) = dashboard.head() else { return };
    let goodput = "Share of the time that steps needed at their median duration";
    registry.gauge("goodput_ratio", goodput, head.goodput);
    registry.gauge("mfu_ratio", "Model FLOPs utilization", head.mfu);
    registry.gauge("workers", "Workers that are present or drain", Some(head.workers as f64));
    registry.gauge("price_per_hour", "Price of an hour with these workers", head.price_per_hour);
    registry.gauge("price_left", "Price of the steps that are left", head.price_left);
}

fn add_plan(registry: &mut MetricRegistry, status: &StatusReport) {
    let Some(plan) = &status.plan else { return };
    let generation = Some(plan.generation as f64);
    registry.gauge("plan_generation", "Generation of the plan in force", generation);
    let shares = [("planned", plan.bubble_planned), ("measured", plan.bubble_measured)];
    let label = |kind: &str| vec![("kind", kind.to_owned())];
    let shares = shares.into_iter().filter_map(|(kind, share)| Some((label(kind), share?)));
    let help = "Share of a step in which the busiest stage waits";
    registry.family("bubble_ratio", help, shares.collect());
}

fn member_labels(member: &MemberStatus) -> Labels {
    vec![("member", member.name.clone()), ("role", member.role.name().to_owned())]
}

fn add_members(registry: &mut MetricRegistry, members: &[MemberStatus]) {
    let up = |member: &MemberStatus| match member.standing {
        MemberState::Present | MemberState::Draining => 1.0,
        MemberState::Lost { .. } => 0.0,
    };
    let rows = members.iter().map(|member| (member_labels(member), up(member))).collect();
    registry.family("member_up", "Whether a member is present or drains", rows);
    let offered = members.iter().map(|member| (member_labels(member), member.memory.0 as f64));
    let help = "Memory that a member offers for training";
    registry.family("member_memory_bytes", help, offered.collect());
    let known = |figure: fn(&MemberStatus) -> Option<f64>| {
        let row = move |member| Some((member_labels(member), figure(member)?));
        members.iter().filter_map(row).collect()
    };
    let used = known(|member| member.memory_used.map(|bytes| bytes.0 as f64));
    registry.family("member_memory_used_bytes", "Resident memory of a member's process", used);
    let planned = known(|member| member.memory_planned.map(|bytes| bytes.0 as f64));
    let help = "Memory that the plan in force counts on for a member's stage";
    registry.family("member_memory_planned_bytes", help, planned);
    let round_trip = known(|member| member.round_trip_us.map(|us| us as f64 / 1e6));
    let help = "Round trip from the answering controller to a member over QUIC";
    registry.family("member_round_trip_seconds", help, round_trip);
}

fn add_group(registry: &mut MetricRegistry, status: &StatusReport) {
    registry.gauge("raft_term", "Raft term of the leader", Some(status.term as f64));
    let quorum = &status.quorum;
    registry.gauge("voters", "Controllers that vote", Some(quorum.voters.len() as f64));
    let reachable = Some(quorum.reachable.len() as f64);
    registry.gauge("voters_reachable", "Voters that something was received from lately", reachable);
    let is_held = Some(f64::from(quorum.is_held()));
    registry.gauge("has_quorum", "Whether enough voters are reachable", is_held);
    if let Some(latency) = &status.commit_latency {
        let p50 = Some(seconds(latency.p50_ms));
        let help = "Median time of the last appends to the leader's log until their commit";
        registry.gauge_in("commit_latency_p50", help, Some(Unit::Seconds), p50);
        let max = Some(seconds(latency.max_ms));
        let help = "Longest time of the last appends to the leader's log until their commit";
        registry.gauge_in("commit_latency_max", help, Some(Unit::Seconds), max);
    }
    if let Some(wait) = &status.verdict_wait {
        let p50 = Some(seconds(wait.p50_ms));
        let help = "Median wait for a verdict over the last steps";
        registry.gauge_in("verdict_wait_p50", help, Some(Unit::Seconds), p50);
        let max = Some(seconds(wait.max_ms));
        let help = "Longest wait for a verdict of the last steps";
        registry.gauge_in("verdict_wait_max", help, Some(Unit::Seconds), max);
    }
    add_counters(registry, &status.counters);
}

/// The uptime of a status's counters, which is a time and no count.
const UPTIME: &str = "uptime_s";
/// The counters of inputs that were refused, each behind this by its reason.
const REFUSED: &str = "refused_";

fn add_counters(registry: &mut MetricRegistry, counters: &BTreeMap<String, u64>) {
    let activity = Family::<Labels, Counter>::default();
    let refused = Family::<Labels, Counter>::default();
    for (name, count) in counters.iter().filter(|(name, _)| *name != UPTIME) {
        let (family, label) = match name.strip_prefix(REFUSED) {
            Some(reason) => (&refused, ("reason", reason.replace('-', "_"))),
            None => (&activity, ("name", name.clone())),
        };
        family.get_or_create(&vec![label]).inc_by(*count);
    }
    registry.0.register("activity", "Counts since the answering controller started", activity);
    let help = "Inputs that the answering controller refused since it started";
    registry.0.register("refused", help, refused);
    let uptime = counters.get(UPTIME).map(|uptime| *uptime as f64);
    let help = "Time since the answering controller started";
    registry.gauge_in("uptime", help, Some(Unit::Seconds), uptime);
}

fn add_checkpoint(registry: &mut MetricRegistry, status: &StatusReport) {
    let Some(newest) = status.checkpoints.last() else { return };
    registry.gauge("checkpoint_step", "Steps of the newest checkpoint", Some(newest.step as f64));
    let age = newest.at_ms.map(|at_ms| seconds(status.at_ms.saturating_sub(at_ms) as f64));
    let help = "Time since the newest checkpoint was durable";
    registry.gauge_in("checkpoint_age", help, Some(Unit::Seconds), age);
    let help = "Fewest copies of any of its layers";
    registry.gauge("checkpoint_copies", help, Some(f64::from(newest.copies)));
    let bytes = Some(newest.bytes.0 as f64);
    registry.gauge_in("checkpoint", "Bytes of one copy of it", Some(Unit::Bytes), bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Observation, RunCosts};
    use zbelastic_api::sample;

    fn scraped(observed: impl IntoIterator<Item = Observation>) -> String {
        let costs = RunCosts {
            price_per_hour: Some(1.0),
            flop_per_token: Some(1e6),
            peak_flop_per_s: Some(1e12),
        };
        let mut dashboard = Dashboard::new(costs);
        observed.into_iter().for_each(|observed| drop(dashboard.observe(observed)));
        metrics_text(&dashboard)
    }

    fn status() -> Observation {
        let mut status = sample::status();
        let counters = [("uptime_s", 3600), ("refused_other-cluster", 2)];
        status.counters.extend(counters.map(|(name, count)| (name.to_owned(), count)));
        Observation::Status(Box::new(status))
    }

    /// The names of the samples of a scrape.
    fn names(text: &str) -> Vec<&str> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.filter_map(|line| line.split(['{', ' ']).next()).collect()
    }

    #[test]
    fn samples_have_the_values_of_the_status() {
        let text = scraped(Some(status()));
        let check = |line: &str| assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        check("zbelastic_up 1.0");
        check("zbelastic_run_step 1280.0");
        check("zbelastic_step_seconds 0.412");
        check("zbelastic_left_seconds 3733.0");
        check("zbelastic_bubble_ratio{kind=\"measured\"} 0.021");
        check("zbelastic_bubble_ratio{kind=\"planned\"} 0.018");
        check("zbelastic_member_up{member=\"gpu-c\",role=\"worker\"} 0.0");
        check("zbelastic_member_memory_used_bytes{member=\"gpu-a\",role=\"worker\"} 3221225472.0");
        check(
            "zbelastic_member_memory_planned_bytes{member=\"gpu-a\",role=\"worker\"} 4294967296.0",
        );
        check("zbelastic_member_round_trip_seconds{member=\"gpu-a\",role=\"worker\"} 0.00031");
        assert!(!text.contains("_used_bytes{member=\"gpu-d\""), "it reported none: {text}");
        check("zbelastic_checkpoint_bytes 1600000000.0");
        check("zbelastic_checkpoint_age_seconds 187.0");
        check("zbelastic_activity_total{name=\"frames_refused\"} 3");
        check("# TYPE zbelastic_activity counter");
        check("zbelastic_refused_total{reason=\"other_cluster\"} 2");
        check("# TYPE zbelastic_uptime_seconds gauge");
        check("zbelastic_uptime_seconds 3600.0");
        assert!(!text.contains("uptime_s\"") && !text.contains("refused_other"), "{text}");
        check("# UNIT zbelastic_step_seconds seconds");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn every_sample_has_a_listed_name() {
        let dropped = Observation::SpansDropped { total: 7 };
        let text = scraped([status(), dropped]);
        assert!(text.contains("\nzbelastic_spans_dropped_total 7\n"), "{text}");
        let found = names(&text);
        assert!(found.iter().all(|name| METRIC_NAMES.contains(name)), "{found:?}");
        // No steps were observed, so there is no goodput.
        let missing: Vec<_> = METRIC_NAMES.iter().filter(|name| !found.contains(name)).collect();
        assert_eq!(missing, [&"zbelastic_goodput_ratio"]);
    }

    #[test]
    fn the_dashboard_and_the_page_of_metrics_name_what_is_there() {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let named = |text: &str| -> Vec<String> {
            let words = text.split(|c: char| !is_name(c));
            words.filter(|word| word.starts_with("zbelastic_")).map(str::to_owned).collect()
        };
        let dashboard: serde_json::Value =
            serde_json::from_str(include_str!("../../docs/grafana.json")).expect("JSON");
        let panels = dashboard["panels"].as_array().expect("a list").iter();
        let targets = panels.flat_map(|panel| panel["targets"].as_array().expect("a list"));
        let queries: Vec<&str> = targets.filter_map(|target| target["expr"].as_str()).collect();
        assert!(queries.len() > 10, "{queries:?}");
        for name in queries.iter().flat_map(|query| named(query)) {
            assert!(METRIC_NAMES.contains(&name.as_str()), "the dashboard asks for {name}");
        }
        let page = named(include_str!("../../docs/page.md"));
        let missing: Vec<_> =
            METRIC_NAMES.iter().filter(|name| !page.iter().any(|found| found == *name)).collect();
        assert!(missing.is_empty(), "docs/page.md has nothing about {missing:?}");
        assert!(page.iter().all(|name| METRIC_NAMES.contains(&name.as_str())), "{page:?}");
    }

    #[test]
    fn a_cluster_that_does_not_answer_is_down_and_no_figure_is_zero() {
        assert_eq!(names(&scraped(None)), ["zbelastic_up"]);
        let lost = scraped(Some(Observation::Unanswered { reason: "nobody".to_owned() }));
        assert!(lost.contains("zbelastic_up 0.0"), "{lost}");
    }
}
