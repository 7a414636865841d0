//! Opens the UDP socket of the endpoint.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use socket2::{Domain, Protocol, Socket, Type};

use super::setup::BindError;

/// A socket that listens at an address, with as much of the requested buffer space as the system
/// gives.
pub(super) fn bind_udp(address: SocketAddr, buffer_bytes: usize) -> Result<UdpSocket, BindError> {
    open(address, buffer_bytes).map_err(|source| refused(address, source))
}

fn refused(address: SocketAddr, source: io::Error) -> BindError {
    let kind = source.kind();
    if kind == io::ErrorKind::AddrInUse {
        BindError::PortInUse { address }
    } else if kind == io::ErrorKind::PermissionDenied {
        BindError::NotPermitted { address }
    } else if kind == io::ErrorKind::AddrNotAvailable {
        BindError::NotHere { address }
    } else {
        BindError::Socket { address, source }
    }
}

fn open(address: SocketAddr, buffer_bytes: usize) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    // The system caps these at its own limits; the space that it gives is enough to work.
    socket.set_recv_buffer_size(buffer_bytes)?;
    socket.set_send_buffer_size(buffer_bytes)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_not_allowed_is_distinguished() {
        let address = "127.0.0.1:1".parse().unwrap();
        let refused = refused(address, io::ErrorKind::PermissionDenied.into());
        assert!(matches!(refused, BindError::NotPermitted { .. }));
    }

    #[test]
    fn a_port_in_use_and_an_address_of_another_host_are_distinguished() {
        let first = bind_udp("127.0.0.1:0".parse().unwrap(), 1 << 20).unwrap();
        let address = first.local_addr().unwrap();
        let second = bind_udp(address, 1 << 20);
        assert!(matches!(second, Err(BindError::PortInUse { address: found }) if found == address));
        // 192.0.2.0/24 is for documentation: no host has it.
        let foreign = bind_udp("192.0.2.1:0".parse().unwrap(), 1 << 20);
        assert!(matches!(foreign, Err(BindError::NotHere { .. })));
        drop(first);
        assert!(bind_udp(address, 1 << 20).is_ok());
    }
}
