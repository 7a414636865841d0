//! The task that owns the dashboard, and the queues of open pages.

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Duration, Instant, interval_at};
use zbelastic_view::{Dashboard, Observation, metrics_text};

/// Pages that are open at once. Each costs its queue and, at 1,000 members, about half a megabyte a
/// second of loopback; beyond it a page is answered 503 with the reason.
pub const VIEWERS_MAX: usize = 64;
/// Messages that wait for one page. A cluster makes two to five a second: a page that is this far
/// behind has received nothing for ten seconds, and is dropped. It connects again by itself.
const QUEUE_MESSAGES_MAX: usize = 64;
/// Observations and requests that wait for the hub.
const HUB_QUEUE_MAX: usize = 256;
/// Between two comments that keep a stream open and find out that its page is gone.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// A request of a connection.
pub enum HubRequest {
    /// Opens a stream of messages, which begins with a snapshot; `None` if there are too many.
    Subscribe(oneshot::Sender<Option<mpsc::Receiver<Bytes>>>),
    /// Sends the text of a scrape.
    Metrics(oneshot::Sender<String>),
    /// Sends the last status as JSON, if there is one.
    Status(oneshot::Sender<Option<String>>),
}

/// Connects observers and connections with the hub.
#[derive(Clone)]
pub struct HubSender {
    pub observed: mpsc::Sender<Observation>,
    pub requests: mpsc::Sender<HubRequest>,
    /// What pages need.
    pub demand: watch::Receiver<PageDemand>,
}

/// What pages need of those who observe the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageDemand {
    /// How many pages are open.
    pub viewers: usize,
    /// The newest step whose lanes are kept, or 0.
    pub newest_lanes: u64,
}

/// Receivers of the hub.
pub struct Hub {
    dashboard: Dashboard,
    observed: mpsc::Receiver<Observation>,
    requests: mpsc::Receiver<HubRequest>,
    viewers: Vec<mpsc::Sender<Bytes>>,
    demand: watch::Sender<PageDemand>,
}

/// A hub of an empty dashboard, and what sends to it.
pub fn hub(dashboard: Dashboard) -> (Hub, HubSender) {
    let (observed, observed_inbox) = mpsc::channel(HUB_QUEUE_MAX);
    let (requests, request_inbox) = mpsc::channel(HUB_QUEUE_MAX);
    let (demand, demanded) = watch::channel(PageDemand::default());
    let hub = Hub {
        dashboard,
        observed: observed_inbox,
        requests: request_inbox,
        viewers: Vec::new(),
        demand,
    };
    (hub, HubSender { observed, requests, demand: demanded })
}

impl Hub {
    /// Runs until nobody can send to it any more.
    pub async fn run(mut self) {
        let mut heartbeat = interval_at(Instant::now() + HEARTBEAT, HEARTBEAT);
        loop {
            tokio::select! {
                biased;
                request = self.requests.recv() => match request {
                    Some(request) => self.answer(request),
                    None => return,
                },
                observed = self.observed.recv() => match observed {
                    Some(observed) => {
                        let messages = self.dashboard.observe(observed);
                        messages.iter().for_each(|message| self.send(&event(message)));
                        self.publish_demand();
                    }
                    None => return,
                },
                _ = heartbeat.tick() => {
                    self.send(&Bytes::from_static(b": heartbeat\n\n"));
                    self.publish_demand();
                }
            }
        }
    }

    fn answer(&mut self, request: HubRequest) {
        // A connection that has ended in the meantime needs no answer.
        match request {
            HubRequest::Subscribe(reply) => drop(reply.send(self.subscribe())),
            HubRequest::Metrics(reply) => drop(reply.send(metrics_text(&self.dashboard))),
            HubRequest::Status(reply) => {
                let status = self.dashboard.status().map(zbelastic_view::status_json);
                drop(reply.send(status));
            }
        }
    }

    fn subscribe(&mut self) -> Option<mpsc::Receiver<Bytes>> {
        self.viewers.retain(|viewer| !viewer.is_closed());
        if self.viewers.len() >= VIEWERS_MAX {
            return None;
        }
        let (viewer, messages) = mpsc::channel(QUEUE_MESSAGES_MAX);
        viewer.try_send(event(&self.dashboard.snapshot())).ok()?;
        self.viewers.push(viewer);
        self.publish_demand();
        Some(messages)
    }

    /// Sends to every open page; one whose queue is full or closed is dropped.
    fn send(&mut self, message: &Bytes) {
        self.viewers.retain(|viewer| viewer.try_send(message.clone()).is_ok());
    }

    fn publish_demand(&self) {
        let newest_lanes = self.dashboard.newest_lanes();
        self.demand.send_replace(PageDemand { viewers: self.viewers.len(), newest_lanes });
    }
}

/// A message as a server-sent event (WHATWG HTML, section 9.2): JSON of one line has no line end.
fn event(json: &str) -> Bytes {
    Bytes::from(format!("data: {json}\n\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbelastic_view::RunCosts;

    fn lost(reason: &str) -> Observation {
        Observation::Unanswered { reason: reason.to_owned() }
    }

    async fn subscribe(hub: &HubSender) -> Option<mpsc::Receiver<Bytes>> {
        let (reply, answer) = oneshot::channel();
        hub.requests.send(HubRequest::Subscribe(reply)).await.ok()?;
        answer.await.expect("the hub runs")
    }

    #[tokio::test]
    async fn a_page_that_does_not_read_is_dropped_and_others_receive_all() {
        let (task, hub) = hub(Dashboard::new(RunCosts::default()));
        let task = tokio::spawn(task.run());
        let slow = subscribe(&hub).await.expect("it is let in");
        let mut quick = subscribe(&hub).await.expect("it is let in");
        assert!(
            quick.recv().await.expect("a snapshot").starts_with(b"data: {\"kind\":\"snapshot\"")
        );
        // The snapshot fills one place of the queue.
        for number in 0..QUEUE_MESSAGES_MAX {
            hub.observed.send(lost(&number.to_string())).await.expect("the hub runs");
            let message = quick.recv().await.expect("the page is open");
            assert!(String::from_utf8_lossy(&message).contains(&format!("\"{number}\"")));
        }
        assert_eq!(hub.demand.borrow().viewers, 1, "the slow one is gone");
        drop((slow, quick, hub));
        task.await.expect("it ended");
    }

    #[tokio::test]
    async fn so_many_pages_are_open_at_once() {
        let (task, hub) = hub(Dashboard::new(RunCosts::default()));
        let task = tokio::spawn(task.run());
        let mut open = Vec::new();
        for _ in 0..VIEWERS_MAX {
            open.push(subscribe(&hub).await.expect("it is let in"));
        }
        assert!(subscribe(&hub).await.is_none());
        open.pop();
        assert!(subscribe(&hub).await.is_some(), "there is a place again");
        drop((open, hub));
        task.await.expect("it ended");
    }
}
