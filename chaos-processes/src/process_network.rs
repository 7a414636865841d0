//! How the processes of a cluster reach each other, and how they are kept from it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::process::Command;

use serde::Serialize;

use super::faults::ProcessFaultKind;
use super::link_conditions::LinkConditions;
use super::namespaces::{CutDirection, NetworkNamespace, NetworkNamespaces};
use super::ports::PortAllocator;
use super::proxy::{LinkSelector, NetworkSite, Proxy};

/// The network between two processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkKind {
    /// The loopback interface, or a Unix socket of the same host.
    #[default]
    Loopback,
    /// A proxy in user space.
    Proxy,
    /// A network namespace for each.
    Namespaces,
}

impl NetworkKind {
    /// Whether this fault can be injected over such a network.
    #[must_use]
    pub const fn can(self, kind: ProcessFaultKind) -> bool {
        match kind {
            ProcessFaultKind::Isolate | ProcessFaultKind::OneWay => !matches!(self, Self::Loopback),
            ProcessFaultKind::Storm | ProcessFaultKind::Replay => matches!(self, Self::Proxy),
            ProcessFaultKind::KillWorker
            | ProcessFaultKind::KillWorkers
            | ProcessFaultKind::KillLeader
            | ProcessFaultKind::KillFollower
            | ProcessFaultKind::PauseWorker
            | ProcessFaultKind::PauseController
            | ProcessFaultKind::Drain
            | ProcessFaultKind::Join
            | ProcessFaultKind::PowerCycle
            | ProcessFaultKind::FullDisk
            | ProcessFaultKind::DamageDisk => true,
        }
    }
}

impl fmt::Display for NetworkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loopback => "the loopback",
            Self::Proxy => "the proxy",
            Self::Namespaces => "network namespaces",
        })
    }
}

/// Where a node binds, and where others are to send to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeAddresses {
    /// The address that the node binds.
    pub bind: SocketAddr,
    /// The address that it advertises to others.
    pub advertise: SocketAddr,
}

/// The network between the processes of a cluster.
#[derive(Debug)]
pub enum ProcessNetwork {
    /// Nothing lies between nodes.
    Loopback(PortAllocator),
    /// All through the proxy.
    Proxy(PortAllocator, Proxy),
    /// All through the hub.
    Namespaces(NetworkNamespaces),
}

impl ProcessNetwork {
    /// A network without nodes. Its ports, and the draws of the proxy's links, follow from the
    /// seeds.
    ///
    /// # Errors
    /// If the system does not allow it.
    pub fn start(network: NetworkKind, ports_seed: u64, draws_seed: u64) -> io::Result<Self> {
        Ok(match network {
            NetworkKind::Loopback => Self::Loopback(PortAllocator::new(ports_seed)),
            NetworkKind::Proxy => {
                Self::Proxy(PortAllocator::new(ports_seed), Proxy::start(draws_seed)?)
            }
            NetworkKind::Namespaces => Self::Namespaces(NetworkNamespaces::start()?),
        })
    }

    /// The kind of this network.
    #[must_use]
    pub const fn kind(&self) -> NetworkKind {
        match self {
            Self::Loopback(_) => NetworkKind::Loopback,
            Self::Proxy(..) => NetworkKind::Proxy,
            Self::Namespaces(_) => NetworkKind::Namespaces,
        }
    }

    /// Addresses for the node of the next site.
    ///
    /// # Errors
    /// If there is no port left, or the system does not do it.
    pub fn add(&mut self, site: NetworkSite) -> io::Result<NodeAddresses> {
        let alike = |bind| NodeAddresses { bind, advertise: bind };
        match self {
            Self::Loopback(ports) => ports.take().map(alike),
            Self::Proxy(ports, proxy) => {
                let bind = ports.take()?;
                Ok(NodeAddresses { bind, advertise: proxy.add(site, bind)? })
            }
            Self::Namespaces(namespaces) => namespaces.add(site).map(alike),
        }
    }

    /// Makes the process that this command starts run at that site.
    pub fn place(&self, site: NetworkSite, command: &mut Command) {
        match self {
            Self::Loopback(_) | Self::Proxy(..) => {}
            Self::Namespaces(namespaces) => namespaces.of(site).hold(command),
        }
    }

    /// The namespace in which subcommands run, if it is not this process's own.
    #[must_use]
    pub fn hub(&self) -> Option<NetworkNamespace> {
        match self {
            Self::Loopback(_) | Self::Proxy(..) => None,
            Self::Namespaces(namespaces) => Some(namespaces.hub().clone()),
        }
    }

    /// The proxy, if there is one.
    #[must_use]
    pub const fn proxy(&self) -> Option<&Proxy> {
        match self {
            Self::Proxy(_, proxy) => Some(proxy),
            Self::Loopback(_) | Self::Namespaces(_) => None,
        }
    }

    /// Cuts a site off. Nothing can be cut on the loopback.
    ///
    /// # Errors
    /// If the system does not do it.
    pub fn cut(&mut self, site: NetworkSite, cut: CutDirection) -> io::Result<()> {
        match self {
            Self::Loopback(_) => {}
            Self::Proxy(_, proxy) => {
                if matches!(cut, CutDirection::Both | CutDirection::Deaf) {
                    proxy.set(LinkSelector::To(site), LinkConditions::CUT);
                }
                if matches!(cut, CutDirection::Both | CutDirection::Mute) {
                    proxy.set(LinkSelector::From(site), LinkConditions::CUT);
                }
            }
            Self::Namespaces(namespaces) => namespaces.cut(site, cut)?,
        }
        Ok(())
    }

    /// Resets every link to clear conditions, and undoes all cuts.
    ///
    /// # Errors
    /// If the system does not do it.
    pub fn heal(&mut self) -> io::Result<()> {
        match self {
            Self::Loopback(_) => {}
            Self::Proxy(_, proxy) => proxy.set(LinkSelector::All, LinkConditions::CLEAR),
            Self::Namespaces(namespaces) => namespaces.heal()?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::NetworkKind;
    use crate::faults::ProcessFaultKind;

    #[test]
    fn a_fault_of_the_network_needs_a_network_that_can_do_it() {
        let can = |network: NetworkKind| {
            ProcessFaultKind::ALL.into_iter().filter(move |kind| network.can(*kind))
        };
        assert_eq!(can(NetworkKind::Proxy).count(), ProcessFaultKind::ALL.len());
        assert!(can(NetworkKind::Loopback).all(|kind| !kind.is_network()));
        let namespaces: Vec<_> =
            can(NetworkKind::Namespaces).filter(|kind| kind.is_network()).collect();
        assert_eq!(namespaces, [ProcessFaultKind::Isolate, ProcessFaultKind::OneWay]);
    }
}
