//! Measures what a flood at a controller's port costs a run: windows of time with and without it,
//! in turn, and the steps that were sealed in each.
//!
//! ```text
//! cargo run --release -p zbelastic-cli --example flood -- DATA-DIR [DATAGRAMS-A-SECOND]
//! ```
//!
//! The cluster of that folder must train. Half of the datagrams are noise, half look like the first
//! one of a handshake; a window is long enough for some dozens of steps of a small model.

use std::error::Error;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use zbelastic_api::client::ApiClient;
use zbelastic_cli::exchange;
use zbelastic_node_folder::NodeDataFolder;

/// Windows of each kind.
const ROUNDS: u32 = 6;
/// How long one is.
const WINDOW: Duration = Duration::from_secs(10);
/// Datagrams that are sent without a pause.
const BURST: u32 = 100;
const RATE_DEFAULT: u32 = 10_000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = NodeDataFolder::new(PathBuf::from(arguments.next().ok_or("whose folder?")?));
    let rate = arguments.next().map_or(Ok(RATE_DEFAULT), |text| text.parse())?;
    let admin = folder.read_admin().map_err(|failure| failure.to_string())?;
    let address: SocketAddr = admin.addresses.first().ok_or("no address")?.parse()?;
    let exchange = exchange(&folder).map_err(|failure| failure.to_string())?;
    let mut client = ApiClient::new(admin.addresses, exchange);
    let mut quiet = 0.0;
    let mut flooded = 0.0;
    for _ in 0..ROUNDS {
        quiet += steps_a_second(&mut client)?;
        let is_over = AtomicBool::new(false);
        flooded += std::thread::scope(|scope| {
            scope.spawn(|| flood(address, rate, &is_over));
            let measured = steps_a_second(&mut client);
            is_over.store(true, Ordering::Relaxed);
            measured
        })?;
    }
    let quiet = quiet / f64::from(ROUNDS);
    let flooded = flooded / f64::from(ROUNDS);
    println!("quiet    {quiet:.2} steps a second");
    println!("flooded  {flooded:.2} steps a second, {rate} datagrams a second");
    println!("a step takes {:+.1} %", 100.0 * (quiet / flooded - 1.0));
    Ok(())
}

fn steps_a_second(client: &mut ApiClient<'_>) -> Result<f64, Box<dyn Error>> {
    let mut step = || -> Result<(u64, Instant), Box<dyn Error>> {
        let job = client.status()?.job.ok_or("nothing is trained")?;
        Ok((job.step, Instant::now()))
    };
    let (first, began) = step()?;
    std::thread::sleep(WINDOW);
    let (last, ended) = step()?;
    Ok((last - first) as f64 / (ended - began).as_secs_f64())
}

fn flood(address: SocketAddr, rate: u32, is_over: &AtomicBool) {
    let Ok(socket) = UdpSocket::bind("0.0.0.0:0") else { return };
    let mut noise = SplitMix64::seed_from_u64(1);
    let mut datagram = [0_u8; 1200];
    let began = Instant::now();
    let mut sent = 0_u32;
    while !is_over.load(Ordering::Relaxed) {
        for index in 0..BURST {
            noise.fill_bytes(&mut datagram);
            if index % 2 == 0 {
                // Long header, version 1, two connection ids of 8 bytes.
                datagram[..6].copy_from_slice(&[0xc3, 0, 0, 0, 1, 8]);
                datagram[14] = 8;
            }
            // What the system does not take is not sent: it is a flood.
            let _ = socket.send_to(&datagram, address);
        }
        sent += BURST;
        let due = Duration::from_secs_f64(f64::from(sent) / f64::from(rate));
        std::thread::sleep(due.saturating_sub(began.elapsed()));
    }
}
