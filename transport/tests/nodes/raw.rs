//! A member by its certificate whose program sends any bytes.

use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint, RecvStream, SendStream};
use tokio::time::timeout;
use zbelastic_identity::{Credentials, ExpectedPeer};
use zbelastic_transport::{CloseCode, Transport};

use crate::site::DEADLINE;

pub struct RawPeer {
    pub connection: Connection,
    _endpoint: Endpoint,
    _hello: Option<(SendStream, RecvStream)>,
}

pub fn client_config(credentials: &Credentials) -> ClientConfig {
    let tls = credentials.client_config(ExpectedPeer::AnyMember).unwrap();
    ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()))
}

/// The hello of the first start of a process, over QUIC.
pub const HELLO: [u8; 11] = [2, 0, 2, 0, 5, 0, 1, 1, 1, 0, 0];

impl RawPeer {
    /// A connection on which nothing was sent.
    pub async fn silent(credentials: &Credentials, to: &Transport) -> Self {
        let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let config = client_config(credentials);
        let connecting = endpoint.connect_with(config, to.local_addr(), "zbelastic").unwrap();
        let connection = timeout(DEADLINE, connecting).await.unwrap().unwrap();
        Self { connection, _endpoint: endpoint, _hello: None }
    }

    /// A connection on which hellos were exchanged.
    pub async fn greeted(credentials: &Credentials, to: &Transport) -> Self {
        let mut raw = Self::silent(credentials, to).await;
        let (mut send, mut receive) = raw.connection.open_bi().await.unwrap();
        send.write_all(&[&[1][..], &HELLO].concat()).await.unwrap();
        let mut head = [0; 6];
        receive.read_exact(&mut head).await.unwrap();
        send.write_all(&[0]).await.unwrap();
        raw._hello = Some((send, receive));
        raw
    }

    /// Sends bytes on a new stream that goes one way.
    pub async fn send_one_way(&self, bytes: &[u8]) -> SendStream {
        let mut stream = timeout(DEADLINE, self.connection.open_uni()).await.unwrap().unwrap();
        stream.write_all(bytes).await.unwrap();
        stream
    }

    /// Sends bytes on a new stream that goes both ways.
    pub async fn send_both_ways(&self, bytes: &[u8]) -> (SendStream, RecvStream) {
        let (mut send, receive) = self.connection.open_bi().await.unwrap();
        send.write_all(bytes).await.unwrap();
        (send, receive)
    }

    /// Why the other end closed.
    pub async fn closed_for(&self) -> CloseCode {
        let error = timeout(DEADLINE, self.connection.closed()).await.expect("closed in time");
        let quinn::ConnectionError::ApplicationClosed(close) = error else {
            panic!("closed otherwise: {error}");
        };
        CloseCode::of(close.error_code.into_inner())
    }
}

/// Whether this end is given no credit to open a stream of one way: a wait that must not end.
pub async fn cannot_open_one_way(raw: &RawPeer) -> bool {
    // The credit would have come with the hello; a moment is enough to see that it does not.
    timeout(Duration::from_millis(50), raw.connection.open_uni()).await.is_err()
}
