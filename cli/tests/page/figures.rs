//! What a scrape of a real cluster has of its members and its plan.

use zbelastic_api::{MemberPath, MemberRole, MemberStatus};

use crate::PageServer;
use crate::harness::SpawnedCluster;
use crate::http::get;

/// A process that trains has more than this, and less than what its machine offers.
const LEAST_BYTES: f64 = (1 << 20) as f64;

/// The value of a sample of a scrape.
fn value(metrics: &str, sample: &str) -> Option<f64> {
    let line = metrics.lines().find_map(|line| line.strip_prefix(sample))?;
    line.trim().parse().ok()
}

fn of_member(metrics: &str, name: &str, member: &MemberStatus) -> Option<f64> {
    let (of, role) = (&member.name, member.role);
    value(metrics, &format!("zbelastic_member_{name}{{member=\"{of}\",role=\"{role}\"}} "))
}

#[test]
fn a_scrape_has_what_members_use_and_what_the_plan_counts_on() {
    let mut cluster = SpawnedCluster::new();
    cluster.join_all(&["a", "b"], 3);
    let page = PageServer::start(&cluster.nodes[0].folder, &cluster.addresses[0], "0");
    let host = page.address.trim_start_matches("http://").trim_end_matches('/').to_owned();
    cluster.run(100_000);
    let status = cluster.wait("what every member uses, and a plan of both workers", |cluster| {
        let status = cluster.status()?;
        let plan = status.plan.as_ref()?;
        let is_whole = plan.stages.len() == 2 && plan.bubble_planned.is_some();
        let are_known = status.members.iter().all(|member| member.memory_used.is_some());
        (is_whole && are_known).then_some(status)
    });
    for member in &status.members {
        let is_worker = member.role == MemberRole::Worker;
        assert_eq!(member.memory_planned.is_some(), is_worker, "{member:#?}");
        assert!(!is_worker || member.memory_used < Some(member.memory), "{member:#?}");
        let is_far = member.road == MemberPath::Quic;
        assert_eq!(member.round_trip_us.is_some(), is_far, "{member:#?}");
    }
    // On a machine that is busy the plan may be another one by now, in one of both first.
    let metrics = cluster.wait("the same in a scrape", |cluster| {
        let text = get(&host, "/metrics", "")?.text;
        let status = cluster.status()?;
        let is_alike = |member: &MemberStatus| {
            let planned = of_member(&text, "memory_planned_bytes", member);
            of_member(&text, "memory_used_bytes", member).is_some()
                && planned == member.memory_planned.map(|bytes| bytes.0 as f64)
        };
        value(&text, "zbelastic_bubble_ratio{kind=\"planned\"} ")?;
        status.members.iter().all(is_alike).then_some(text)
    });
    let planned = value(&metrics, "zbelastic_bubble_ratio{kind=\"planned\"} ");
    assert!(planned.is_some_and(|share| (0.0..1.0).contains(&share)), "{metrics}");
    for member in &status.members {
        let used = of_member(&metrics, "memory_used_bytes", member);
        assert!(used > Some(LEAST_BYTES), "{}: {metrics}", member.name);
    }
}
