//! The proxy with plain sockets. A mark that is sent behind the rest, over a link that was made
//! clear again, shows that whatever comes has come.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use super::{LinkEndpoints, LinkSelector, NetworkSite, Proxy};
use crate::link_conditions::LinkConditions;

const CLIENT: NetworkSite = NetworkSite(1);
const SERVER: NetworkSite = NetworkSite(2);
const INWARD: LinkEndpoints = LinkEndpoints { from: CLIENT, to: SERVER };
const OUTWARD: LinkEndpoints = LinkEndpoints { from: SERVER, to: CLIENT };
/// Fewer than a socket holds.
const MANY: u32 = 100;
const MARK: u32 = u32::MAX;
/// Longer than any test takes that passes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client and a server with a proxy between them.
struct ProxyScene {
    proxy: Proxy,
    client: UdpSocket,
    server: UdpSocket,
    /// Where the client sends to.
    listener: SocketAddr,
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.set_read_timeout(Some(PATIENCE)).expect("a time");
    socket
}

fn scene(seed: u64) -> ProxyScene {
    let proxy = Proxy::start(seed).expect("a thread");
    let client = socket();
    let server = socket();
    proxy.add(CLIENT, client.local_addr().expect("bound")).expect("a port");
    let listener = proxy.add(SERVER, server.local_addr().expect("bound")).expect("a port");
    ProxyScene { proxy, client, server, listener }
}

impl ProxyScene {
    fn send(&self, number: u32) {
        self.client.send_to(&number.to_le_bytes(), self.listener).expect("sent");
    }

    /// Sends numbers under conditions, resets those, and returns what arrived.
    fn pass(&self, conditions: LinkConditions) -> Vec<Vec<u8>> {
        self.proxy.set(LinkSelector::One(INWARD), conditions);
        (0..MANY).for_each(|number| self.send(number));
        while self.sent() < u64::from(MANY) {
            std::thread::yield_now();
        }
        self.proxy.set(LinkSelector::One(INWARD), LinkConditions::CLEAR);
        self.send(MARK);
        self.until_mark()
    }

    fn sent(&self) -> u64 {
        let counts = self.proxy.counts();
        counts
            .links
            .iter()
            .find(|(endpoints, _)| *endpoints == INWARD)
            .map_or(0, |(_, counts)| counts.sent)
    }

    fn until_mark(&self) -> Vec<Vec<u8>> {
        let mut came = Vec::new();
        loop {
            let bytes = receive(&self.server).0;
            if bytes == MARK.to_le_bytes() {
                return came;
            }
            came.push(bytes);
        }
    }
}

fn receive(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut buffer = [0; 64];
    let (length, source) = socket.recv_from(&mut buffer).expect("it comes");
    (buffer[..length].to_vec(), source)
}

fn numbers(came: &[Vec<u8>]) -> Vec<u32> {
    came.iter().map(|bytes| u32::from_le_bytes(bytes[..4].try_into().expect("four"))).collect()
}

#[test]
fn an_answer_finds_its_way_back() {
    let scene = scene(1);
    scene.send(5);
    let (question, asker) = receive(&scene.server);
    assert_eq!(question, 5u32.to_le_bytes());
    assert_ne!(asker, scene.client.local_addr().expect("bound"));
    scene.server.send_to(b"answer", asker).expect("sent");
    assert_eq!(receive(&scene.client), (b"answer".to_vec(), scene.listener));
    let counts = scene.proxy.counts();
    let ways: Vec<_> =
        counts.links.iter().map(|(endpoints, counts)| (*endpoints, counts.sent)).collect();
    assert_eq!(ways, [(INWARD, 1), (OUTWARD, 1)]);
    assert_eq!(counts.sent(), 2);
}

#[test]
fn an_unknown_source_is_outside() {
    let scene = scene(1);
    socket().send_to(b"hello", scene.listener).expect("sent");
    assert_eq!(receive(&scene.server).0, b"hello");
    let outside = LinkEndpoints { from: NetworkSite::OUTSIDE, to: SERVER };
    assert_eq!(scene.proxy.counts().sent(), 0);
    assert_eq!(scene.proxy.counts().links.iter().map(|link| link.0).collect::<Vec<_>>(), [outside]);
}

#[test]
fn clear_weather_changes_nothing() {
    assert!(numbers(&scene(1).pass(LinkConditions::CLEAR)).into_iter().eq(0..MANY));
}

#[test]
fn the_same_seed_loses_the_same() {
    let conditions = LinkConditions { loss: 0.3, ..LinkConditions::CLEAR };
    let came = [7, 7, 8].map(|seed| numbers(&scene(seed).pass(conditions)));
    assert!((1..MANY as usize).contains(&came[0].len()));
    assert_eq!(came[0], came[1]);
    assert_ne!(came[0], came[2]);
}

#[test]
fn what_is_doubled_comes_twice() {
    let came =
        numbers(&scene(1).pass(LinkConditions { duplication: 1.0, ..LinkConditions::CLEAR }));
    assert!(came.into_iter().eq((0..MANY).flat_map(|number| [number, number])));
}

#[test]
fn what_is_damaged_differs_in_one_bit() {
    let came = scene(1).pass(LinkConditions { corruption: 1.0, ..LinkConditions::CLEAR });
    let differing = numbers(&came).into_iter().zip(0..MANY).map(|(a, b)| (a ^ b).count_ones());
    assert!(differing.eq(std::iter::repeat_n(1, MANY as usize)));
}

#[test]
fn what_is_overtaken_comes_all_the_same() {
    let conditions = LinkConditions { reordering: 0.5, reorder_us: 3000, ..LinkConditions::CLEAR };
    let scene = scene(1);
    scene.proxy.set(LinkSelector::One(INWARD), conditions);
    (0..MANY).for_each(|number| scene.send(number));
    let mut came: Vec<u32> = (0..MANY).map(|_| numbers(&[receive(&scene.server).0])[0]).collect();
    assert!(!came.is_sorted(), "nothing overtook anything");
    came.sort_unstable();
    assert!(came.into_iter().eq(0..MANY));
}

#[test]
fn one_way_may_be_cut_and_the_other_not() {
    let scene = scene(1);
    scene.send(0);
    let asker = receive(&scene.server).1;
    scene.proxy.set(LinkSelector::From(CLIENT), LinkConditions::CUT);
    scene.send(1);
    while scene.sent() < 2 {
        std::thread::yield_now();
    }
    scene.server.send_to(b"heard", asker).expect("sent");
    assert_eq!(receive(&scene.client).0, b"heard");
    scene.proxy.set(LinkSelector::All, LinkConditions::CLEAR);
    scene.send(2);
    assert_eq!(numbers(&[receive(&scene.server).0]), [2]);
}

#[test]
fn weather_is_there_before_its_link() {
    let scene = scene(1);
    scene.proxy.set(LinkSelector::To(SERVER), LinkConditions::CUT);
    scene.send(1);
    while scene.sent() < 1 {
        std::thread::yield_now();
    }
    scene.proxy.set(LinkSelector::One(INWARD), LinkConditions::CLEAR);
    scene.send(2);
    assert_eq!(numbers(&[receive(&scene.server).0]), [2]);
}

#[test]
fn what_was_recorded_comes_again() {
    let scene = scene(1);
    scene.proxy.record(true);
    assert_eq!(scene.pass(LinkConditions::CLEAR).len(), MANY as usize);
    scene.proxy.replay(LinkSelector::One(INWARD), 3);
    let again: Vec<_> = (0..3).map(|_| receive(&scene.server).0).collect();
    assert_eq!(numbers(&again), [0, 1, 2]);
    assert_eq!(scene.proxy.counts().replayed, 3);
    scene.proxy.record(false);
    scene.proxy.replay(LinkSelector::All, 3);
    assert_eq!(scene.proxy.counts().replayed, 3);
}
