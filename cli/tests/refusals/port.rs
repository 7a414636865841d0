//! Whatever comes to the port of a node that is not from a node.

use std::io::Write;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::site::{ControllerSite, wait_until};

/// Datagrams of one flood.
const DATAGRAMS: usize = 20_000;
/// Memory that a controller may have more after it.
const GROWTH_MAX: u64 = 32 << 20;
/// Lines of its log that may be about it.
const LINES_MAX: usize = 20;

/// Bytes without any order, from a seed.
fn noise(seed: u64, bytes: &mut [u8]) {
    SplitMix64::seed_from_u64(seed).fill_bytes(bytes);
}

/// The first datagram of a QUIC handshake as far as a stranger can tell without keys: long header,
/// version 1, and noise.
fn like_a_handshake(seed: u64) -> [u8; 1200] {
    let mut datagram = [0; 1200];
    noise(seed, &mut datagram);
    datagram[..6].copy_from_slice(&[0xc3, 0, 0, 0, 1, 8]);
    datagram[14] = 8;
    datagram
}

#[test]
fn noise_tcp_and_http_are_ignored_and_a_flood_of_them_costs_no_memory() {
    let mut site = ControllerSite::new();
    let mut worker = site.worker("w");
    site.run(100_000);
    site.wait_for_checkpoint();
    let memory = site.controller.memory();
    let lines = site.controller.log_text().lines().count();
    let address: SocketAddr = site.address.parse().expect("an address");
    // The port is UDP's: nobody listens for TCP.
    let tcp = TcpStream::connect_timeout(&address, Duration::from_secs(2));
    assert!(tcp.map(|mut stream| stream.write_all(b"GET / HTTP/1.1\r\n\r\n")).is_err());
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let mut bytes = [0; 1200];
    for index in 0..DATAGRAMS {
        noise(index as u64, &mut bytes);
        let length = 1 + index % bytes.len();
        let sent = match index % 3 {
            0 => socket.send_to(&bytes[..length], address),
            1 => socket.send_to(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", address),
            _ => socket.send_to(&like_a_handshake(index as u64), address),
        };
        // A full buffer is the sender's matter.
        let _ = sent;
    }
    let step = site.status()["job"]["step"].as_u64();
    wait_until("more steps", || site.status()["job"]["step"].as_u64() > step);
    let grown = site.controller.memory().saturating_sub(memory);
    assert!(grown <= GROWTH_MAX, "{grown} bytes");
    let log_text = site.controller.log_text();
    let about = log_text.lines().skip(lines).filter(|line| line.contains("strangers")).count();
    assert!(about <= LINES_MAX, "{log_text}");
    assert!(site.controller.is_running() && worker.is_running());
    assert_eq!(site.member("w").expect("a member")["standing"]["state"], "present");
}
