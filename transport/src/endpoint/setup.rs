//! The parts of a transport, and why one cannot be made.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use thiserror::Error;
use zbelastic_identity::Credentials;

use crate::limits::TransportLimits;
use crate::local::LocalBindError;
use crate::peers::ProcessStart;

/// Credentials, addresses and limits of a transport.
#[derive(Clone, Debug)]
pub struct TransportSetup {
    /// The certificate and key of this process, and the authorities that it trusts.
    pub credentials: Credentials,
    /// The UDP address to listen at. Port 0 means any free one.
    pub bind: SocketAddr,
    /// Where this process puts its same-host sockets. `None`: QUIC only.
    pub local_folder: Option<PathBuf>,
    /// Which start of this node this is.
    pub start: ProcessStart,
    /// The limits on connections, queues, lengths and times.
    pub limits: TransportLimits,
}

/// Why a transport cannot be bound.
#[derive(Debug, Error)]
pub enum BindError {
    /// Another process listens there.
    #[error("port in use: {address} is taken by another process")]
    PortInUse {
        /// The address to listen at.
        address: SocketAddr,
    },
    /// The system does not allow this process to listen there.
    #[error("no permission to listen at {address}")]
    NotPermitted {
        /// The address to listen at.
        address: SocketAddr,
    },
    /// This host has no such address.
    #[error("{address} is no address of this host")]
    NotHere {
        /// The address to listen at.
        address: SocketAddr,
    },
    /// The socket failed otherwise.
    #[error("cannot listen at {address}")]
    Socket {
        /// The address to listen at.
        address: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The credentials do not make a TLS configuration.
    #[error("the credentials cannot be used: {why}")]
    Credentials {
        /// The error of the TLS library, as text.
        why: String,
    },
    /// The folder of the same-host socket cannot be used.
    #[error("no same-host socket")]
    Local(#[from] LocalBindError),
}
