//! How the processes of a group reach each other, and how they are kept from it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::process::Command;

use serde::Serialize;

use super::faults::FaultKind;
use super::namespaces::{Cut, Namespace, Namespaces};
use super::ports::Ports;
use super::proxy::{Links, Proxy, Site};
use super::weather::Weather;

/// What lies between two processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Wires {
    /// The loopback, or a socket of the host.
    #[default]
    Loopback,
    /// A proxy in user space.
    Proxy,
    /// A network namespace for each.
    Namespaces,
}

impl Wires {
    /// Whether this fault can strike over them.
    #[must_use]
    pub const fn can(self, kind: FaultKind) -> bool {
        match kind {
            FaultKind::Isolate | FaultKind::OneWay => !matches!(self, Self::Loopback),
            FaultKind::Storm | FaultKind::Replay => matches!(self, Self::Proxy),
            FaultKind::KillWorker
            | FaultKind::KillWorkers
            | FaultKind::KillLeader
            | FaultKind::KillFollower
            | FaultKind::PauseWorker
            | FaultKind::PauseController
            | FaultKind::Drain
            | FaultKind::Join
            | FaultKind::PowerCycle
            | FaultKind::FullDisk => true,
        }
    }
}

impl fmt::Display for Wires {
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
pub struct Door {
    /// The address that the node binds.
    pub bind: SocketAddr,
    /// The address that it advertises to others.
    pub advertise: SocketAddr,
}

/// The wires of a group.
#[derive(Debug)]
pub enum Network {
    /// Nothing lies between nodes.
    Loopback(Ports),
    /// All through the proxy.
    Proxy(Ports, Proxy),
    /// All through the hub.
    Namespaces(Namespaces),
}

impl Network {
    /// Wires without nodes. Ports and weather follow from the seeds.
    ///
    /// # Errors
    /// If the system does not allow it.
    pub fn start(wires: Wires, ports: u64, weather: u64) -> io::Result<Self> {
        Ok(match wires {
            Wires::Loopback => Self::Loopback(Ports::new(ports)),
            Wires::Proxy => Self::Proxy(Ports::new(ports), Proxy::start(weather)?),
            Wires::Namespaces => Self::Namespaces(Namespaces::start()?),
        })
    }

    /// What kind of wires they are.
    #[must_use]
    pub const fn wires(&self) -> Wires {
        match self {
            Self::Loopback(_) => Wires::Loopback,
            Self::Proxy(..) => Wires::Proxy,
            Self::Namespaces(_) => Wires::Namespaces,
        }
    }

    /// A door for the next site.
    ///
    /// # Errors
    /// If there is no port left, or the system does not do it.
    pub fn add(&mut self, site: Site) -> io::Result<Door> {
        let alike = |bind| Door { bind, advertise: bind };
        match self {
            Self::Loopback(ports) => ports.take().map(alike),
            Self::Proxy(ports, proxy) => {
                let bind = ports.take()?;
                Ok(Door { bind, advertise: proxy.add(site, bind)? })
            }
            Self::Namespaces(namespaces) => namespaces.add(site).map(alike),
        }
    }

    /// What this starts is at that site.
    pub fn place(&self, site: Site, command: &mut Command) {
        match self {
            Self::Loopback(_) | Self::Proxy(..) => {}
            Self::Namespaces(namespaces) => namespaces.of(site).hold(command),
        }
    }

    /// Where verbs are typed, if not where we are.
    #[must_use]
    pub fn hub(&self) -> Option<Namespace> {
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
    pub fn cut(&mut self, site: Site, cut: Cut) -> io::Result<()> {
        match self {
            Self::Loopback(_) => {}
            Self::Proxy(_, proxy) => {
                if matches!(cut, Cut::Both | Cut::Deaf) {
                    proxy.set(Links::To(site), Weather::CUT);
                }
                if matches!(cut, Cut::Both | Cut::Mute) {
                    proxy.set(Links::From(site), Weather::CUT);
                }
            }
            Self::Namespaces(namespaces) => namespaces.cut(site, cut)?,
        }
        Ok(())
    }

    /// Clear weather everywhere, and no cuts.
    ///
    /// # Errors
    /// If the system does not do it.
    pub fn mend(&mut self) -> io::Result<()> {
        match self {
            Self::Loopback(_) => {}
            Self::Proxy(_, proxy) => proxy.set(Links::All, Weather::CLEAR),
            Self::Namespaces(namespaces) => namespaces.mend()?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Wires;
    use crate::processes::faults::FaultKind;

    #[test]
    fn a_fault_of_the_network_needs_wires_that_can_do_it() {
        let can = |wires: Wires| FaultKind::ALL.into_iter().filter(move |kind| wires.can(*kind));
        assert_eq!(can(Wires::Proxy).count(), FaultKind::ALL.len());
        assert!(can(Wires::Loopback).all(|kind| !kind.is_network()));
        let namespaces: Vec<_> = can(Wires::Namespaces).filter(|kind| kind.is_network()).collect();
        assert_eq!(namespaces, [FaultKind::Isolate, FaultKind::OneWay]);
    }
}
