//! A network for each process of a cluster, made of the kernel's own means: where the machine
//! allows it, a second opinion to the proxy, with real interfaces, routes and a cable that can be
//! pulled.
//!
//! ```text
//!   a node's namespace            the hub's namespace
//!   10.77.1.1 on eth0   --veth--  wire0, 10.77.0.1, route to 10.77.1.1
//!   10.77.1.2 on eth0   --veth--  wire1, 10.77.0.1, route to 10.77.1.2
//! ```
//!
//! The hub forwards between nodes and is where subcommands run. A cut in both directions sets the
//! hub's end of the veth pair down; a cut in one direction is a routing rule of the hub that drops
//! the packets to a node, or those from it. Rules are in every kernel that has namespaces, which
//! nft and netem are not.
//!
//! A namespace has no name in the system: it lives as long as this holds it, or a process is in it,
//! and nothing stays behind, in whichever way our process ends.

use std::fs::File;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::process::{Command, Stdio};
use std::sync::Arc;

use super::proxy::NetworkSite;
use super::system::{enter_network, own_network};

/// Where the hub is, as its nodes see it.
const HUB: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
/// All nodes have the same port, each at an address of its own.
const PORT: u16 = 7400;
/// Nodes of one third byte.
const NODES_A_BYTE: u32 = 250;
/// Rules that drop the packets to a node have this number and more.
const DEAF_FIRST: u32 = 1_000;
/// Rules that drop the packets from a node have this number and more.
const MUTE_FIRST: u32 = 20_000;

/// A network namespace, by the file that keeps it open.
#[derive(Clone, Debug)]
pub struct NetworkNamespace(Arc<File>);

impl NetworkNamespace {
    /// A new one, with nothing in it.
    ///
    /// # Errors
    /// Without the right to have one.
    pub fn new() -> io::Result<Self> {
        let made = std::thread::spawn(|| {
            own_network()?;
            File::open("/proc/thread-self/ns/net")
        });
        Ok(Self(Arc::new(made.join().expect("it does not panic")?)))
    }

    /// The process that the command starts is in here.
    pub fn hold(&self, command: &mut Command) {
        enter_network(command, self.clone());
    }

    /// How `ip` names it.
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Does these lines of `ip` in here.
    fn ip(&self, lines: &[String]) -> io::Result<()> {
        let mut command = Command::new("ip");
        command.args(["-batch", "-"]).stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        self.hold(&mut command);
        let mut child = command.spawn()?;
        let mut input = child.stdin.take().expect("it is piped");
        input.write_all((lines.join("\n") + "\n").as_bytes())?;
        drop(input);
        let output = child.wait_with_output()?;
        if output.status.success() {
            return Ok(());
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!("ip: {}", stderr.trim())))
    }
}

impl AsFd for NetworkNamespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// In which direction a node is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutDirection {
    /// Its cable is pulled.
    Both,
    /// Nothing reaches the node.
    Deaf,
    /// Nothing from it reaches another node.
    Mute,
}

/// The network namespaces of a cluster.
#[derive(Debug)]
pub struct NetworkNamespaces {
    hub: NetworkNamespace,
    /// Namespaces of the nodes, by site.
    nodes: Vec<NetworkNamespace>,
    cuts: Vec<(NetworkSite, CutDirection)>,
}

impl NetworkNamespaces {
    /// A hub without nodes.
    ///
    /// # Errors
    /// If the machine does not allow it.
    pub fn start() -> io::Result<Self> {
        let hub = NetworkNamespace::new()?;
        hub.ip(&["link set lo up".to_owned()])?;
        forward(&hub)?;
        Ok(Self { hub, nodes: Vec::new(), cuts: Vec::new() })
    }

    /// A namespace for the next site, wired to the hub. Returns where its node is.
    ///
    /// # Errors
    /// If the system does not do it.
    ///
    /// # Panics
    /// If sites do not come in order.
    pub fn add(&mut self, site: NetworkSite) -> io::Result<SocketAddr> {
        assert_eq!(site.0 as usize, self.nodes.len(), "sites come in order");
        let node = NetworkNamespace::new()?;
        let address = address(site);
        let link_name = link_name(site);
        self.hub.ip(&[
            format!("link add {link_name} type veth peer name eth0 netns {}", node.path()),
            format!("addr add {HUB}/32 dev {link_name}"),
            format!("link set {link_name} up"),
            format!("route add {address}/32 dev {link_name}"),
        ])?;
        node.ip(&[
            "link set lo up".to_owned(),
            format!("addr add {address}/32 dev eth0"),
            "link set eth0 up".to_owned(),
            format!("route add {HUB}/32 dev eth0"),
            format!("route add default via {HUB}"),
        ])?;
        self.nodes.push(node);
        Ok(SocketAddr::from((address, PORT)))
    }

    /// The namespace in which subcommands run.
    #[must_use]
    pub fn hub(&self) -> &NetworkNamespace {
        &self.hub
    }

    /// Where a site's processes are.
    #[must_use]
    pub fn of(&self, site: NetworkSite) -> &NetworkNamespace {
        &self.nodes[site.0 as usize]
    }

    /// Cuts a site off.
    ///
    /// # Errors
    /// If the system does not do it.
    pub fn cut(&mut self, site: NetworkSite, cut: CutDirection) -> io::Result<()> {
        self.hub.ip(&[match cut {
            CutDirection::Both => format!("link set {} down", link_name(site)),
            CutDirection::Deaf => {
                format!("rule add pref {} to {}/32 blackhole", DEAF_FIRST + site.0, address(site))
            }
            CutDirection::Mute => {
                format!("rule add pref {} iif {} blackhole", MUTE_FIRST + site.0, link_name(site))
            }
        }])?;
        self.cuts.push((site, cut));
        Ok(())
    }

    /// Joins everything again.
    ///
    /// # Errors
    /// If the system does not do it.
    pub fn heal(&mut self) -> io::Result<()> {
        for (site, cut) in std::mem::take(&mut self.cuts) {
            self.hub.ip(&match cut {
                // The system forgets the routes over an interface that is down.
                CutDirection::Both => vec![
                    format!("link set {} up", link_name(site)),
                    format!("route replace {}/32 dev {}", address(site), link_name(site)),
                ],
                CutDirection::Deaf => vec![format!("rule del pref {}", DEAF_FIRST + site.0)],
                CutDirection::Mute => vec![format!("rule del pref {}", MUTE_FIRST + site.0)],
            })?;
        }
        Ok(())
    }
}

/// A packet from one node for another is passed on.
fn forward(hub: &NetworkNamespace) -> io::Result<()> {
    let mut command = Command::new("sh");
    command.args(["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]).stderr(Stdio::null());
    hub.hold(&mut command);
    if command.status()?.success() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "ip_forward cannot be set"))
}

fn link_name(site: NetworkSite) -> String {
    format!("wire{}", site.0)
}

fn address(site: NetworkSite) -> Ipv4Addr {
    let third = 1 + site.0 / NODES_A_BYTE;
    let third = u8::try_from(third).expect("a group has few members");
    let fourth = u8::try_from(1 + site.0 % NODES_A_BYTE).expect("below the end of a byte");
    Ipv4Addr::new(10, 77, third, fourth)
}

/// Whether this machine allows it: a hub, a veth pair and both cuts are tried.
#[must_use]
pub fn is_possible() -> bool {
    let tried = || -> io::Result<()> {
        let mut namespaces = NetworkNamespaces::start()?;
        namespaces.add(NetworkSite(0))?;
        for cut in [CutDirection::Both, CutDirection::Deaf, CutDirection::Mute] {
            namespaces.cut(NetworkSite(0), cut)?;
            namespaces.heal()?;
        }
        Ok(())
    };
    tried().is_ok()
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, UdpSocket};
    use std::time::Duration;

    use super::{CutDirection, NetworkNamespace, NetworkNamespaces, address, is_possible};
    use crate::proxy::NetworkSite;
    use crate::system::enter_network_here;

    /// Longer than a datagram takes on one machine, unless it is lost.
    const PATIENCE: Duration = Duration::from_secs(20);
    const IMPATIENCE: Duration = Duration::from_millis(100);

    /// A socket of a namespace: it stays there, whichever thread uses it.
    fn socket(namespace: &NetworkNamespace, bind: SocketAddr) -> UdpSocket {
        let namespace = namespace.clone();
        let bound = std::thread::spawn(move || {
            enter_network_here(&namespace).expect("the right to enter");
            UdpSocket::bind(bind).expect("a free port")
        });
        bound.join().expect("no panic")
    }

    /// Whether the datagram with this number arrives. One that was sent into a cut may still wait for the
    /// hardware address of its receiver, and arrive behind the cut.
    fn passes((from, number): (&UdpSocket, u8), to: &UdpSocket, patience: Duration) -> bool {
        let mut bytes = [0; 1];
        to.set_read_timeout(Some(patience)).expect("it may wait");
        // A pulled cable is an error at once on some kernels.
        let _ = from.send_to(&[number], to.local_addr().expect("bound"));
        while to.recv_from(&mut bytes).is_ok() {
            if bytes == [number] {
                return true;
            }
        }
        false
    }

    #[test]
    fn cuts_hold_up_one_direction_or_both_until_they_are_mended() {
        if !is_possible() {
            println!("skipped: this machine does not allow network namespaces");
            return;
        }
        let mut namespaces = NetworkNamespaces::start().expect("it is possible");
        let [one, two] = [NetworkSite(0), NetworkSite(1)].map(|site| {
            let bind = namespaces.add(site).expect("it is possible");
            socket(namespaces.of(site), bind)
        });
        for (number, cut, to_one, from_one) in [
            (0, CutDirection::Both, false, false),
            (2, CutDirection::Deaf, false, true),
            (4, CutDirection::Mute, true, false),
        ] {
            let sent = [(&two, number), (&one, number)];
            assert!(passes(sent[0], &one, PATIENCE) && passes(sent[1], &two, PATIENCE));
            namespaces.cut(NetworkSite(0), cut).expect("it is possible");
            let patience = |passes| if passes { PATIENCE } else { IMPATIENCE };
            let sent = [(&two, number + 1), (&one, number + 1)];
            assert_eq!(passes(sent[0], &one, patience(to_one)), to_one, "{cut:?}");
            assert_eq!(passes(sent[1], &two, patience(from_one)), from_one, "{cut:?}");
            namespaces.heal().expect("it is possible");
        }
    }

    #[test]
    fn each_site_has_an_address() {
        assert_eq!(address(NetworkSite(0)).to_string(), "10.77.1.1");
        assert_eq!(address(NetworkSite(249)).to_string(), "10.77.1.250");
        assert_eq!(address(NetworkSite(250)).to_string(), "10.77.2.1");
        assert_eq!(address(NetworkSite(1023)).to_string(), "10.77.5.24");
    }
}
