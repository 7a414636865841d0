//! `ui`, `--ui`, `top`, `completions` and `man` as typed.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use zbelastic_wording::parse_duration_above_zero;

use super::address::{AddressError, bind_address};
use super::client::ClientArgs;

pub(super) const UI_EXAMPLES: &str = "\
The page is at the address that is printed, /metrics beside it. At a loopback address nobody logs in;
at any other, a browser logs in with a token of `zbelastic token create --role viewer`, and a scraper
sends it as `Authorization: Bearer`. Tokens and pages travel in the clear: on a network that is not
trusted, leave it at the loopback address and forward its port with ssh.

Examples:
  zbelastic ui
  zbelastic ui --cluster 10.0.0.1:7000 --data-dir ~/.zbelastic-wiki
  zbelastic ui --listen 0.0.0.0:8088 --price 1.20
  ssh -L 8088:localhost:8088 controller-1";

/// Where the page is if nothing else is typed.
pub const UI_ADDRESS: &str = "127.0.0.1:8088";
/// Its port, which an address without one gets too: that of nodes is not the page's.
const UI_PORT: u16 = 8088;

/// An address to listen at: a port alone is one of the loopback address, which `localhost` is.
pub fn parse_listen(text: &str) -> Result<SocketAddr, AddressError> {
    if let Ok(port) = text.parse::<u16>() {
        return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    }
    let is_number = !text.is_empty() && text.bytes().all(|letter| letter.is_ascii_digit());
    if is_number {
        return Err(AddressError::ListenPort { found: text.to_owned() });
    }
    let is_end = |rest: &&str| rest.is_empty() || rest.starts_with(':');
    match text.strip_prefix("localhost").filter(is_end) {
        Some(rest) => bind_address(&format!("{}{rest}", Ipv4Addr::LOCALHOST), UI_PORT),
        None => bind_address(text, UI_PORT),
    }
}

/// A price: not negative, and finite.
pub fn parse_price(text: &str) -> Result<f64, String> {
    let price = text.parse::<f64>().ok().filter(|price| price.is_finite() && *price >= 0.0);
    price.ok_or_else(|| "expected a number that is not negative, such as 1.20".to_owned())
}

/// Where the page of a process is that has one beside its work, if it is to have one.
#[derive(Args, Clone, Debug, Default)]
pub struct PageAddress {
    /// Show the cluster as a live page in a browser [default address: 127.0.0.1:8088].
    #[arg(
        long,
        value_name = "ADDR",
        num_args = 0..=1,
        default_missing_value = UI_ADDRESS,
        value_parser = parse_listen
    )]
    pub ui: Option<SocketAddr>,
}

/// The page of a process that has one beside its work.
#[derive(Args, Clone, Debug, Default)]
pub struct PageArgs {
    /// Its address.
    #[command(flatten)]
    pub address: PageAddress,
    /// What a worker costs an hour, for the page.
    #[arg(long, value_name = "PRICE", value_parser = parse_price, requires = "ui")]
    pub price: Option<f64>,
}

/// `ui`.
#[derive(Args, Clone, Debug)]
pub struct UiArgs {
    /// Where the page is: an address of this machine, its port 8088 if none is typed, or a port of
    /// the loopback address.
    #[arg(long, value_name = "ADDR", default_value = UI_ADDRESS, value_parser = parse_listen)]
    pub listen: SocketAddr,
    /// What a worker costs an hour, in any currency: the page shows what the rest of the run costs.
    #[arg(long, value_name = "PRICE", value_parser = parse_price)]
    pub price: Option<f64>,
    /// A controller's events.jsonl: the page begins with what it holds [default: that of the folder].
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
    /// The cluster.
    #[command(flatten)]
    pub client: ClientArgs,
}

pub(super) const TOP_EXAMPLES: &str = "\
The figures, the curve of the loss, the nodes and the last decisions, drawn again as they change.
`q` ends it. Where the output is no terminal, or one without a cursor (TERM=dumb), there is a line
each interval instead.

Examples:
  zbelastic top
  zbelastic top --data-dir ~/.zbelastic-wiki
  zbelastic top --interval 10s | tee progress.txt";

/// `top`.
#[derive(Args, Clone, Debug)]
pub struct TopArgs {
    /// How often a line is printed where the output is no terminal.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration_above_zero)]
    pub interval: Duration,
    /// What a worker costs an hour, in any currency.
    #[arg(long, value_name = "PRICE", value_parser = parse_price)]
    pub price: Option<f64>,
    /// The cluster.
    #[command(flatten)]
    pub client: ClientArgs,
}

pub(super) const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  zbelastic completions bash > ~/.local/share/bash-completion/completions/zbelastic
  zbelastic completions zsh > ~/.zfunc/_zbelastic
  zbelastic completions fish > ~/.config/fish/completions/zbelastic.fish";

pub(super) const MAN_EXAMPLES: &str = "\
Examples:
  zbelastic man | man -l -
  zbelastic man --to ~/.local/share/man/man1";

/// `man`.
#[derive(Args, Clone, Debug)]
pub struct ManArgs {
    /// Write a page for each command into this folder.
    #[arg(long, value_name = "DIR")]
    pub to: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_one_of_the_loopback_address() {
        let check = |text: &str, expected: &str| {
            assert_eq!(parse_listen(text).expect(text).to_string(), expected);
        };
        check("8088", "127.0.0.1:8088");
        check("0", "127.0.0.1:0");
        check("0.0.0.0:80", "0.0.0.0:80");
        check("[::1]:9", "[::1]:9");
        check("0.0.0.0", "0.0.0.0:8088");
        check("127.0.0.1", UI_ADDRESS);
        check("localhost", UI_ADDRESS);
        check("localhost:0", "127.0.0.1:0");
        let error = parse_listen("70000").expect_err("no port").to_string();
        assert!(
            error.starts_with("`70000` is no port: ") && error.contains("0 to 65535"),
            "{error}"
        );
        for wrong in ["70000", "localhost:70000", "localhosts:1", "example"] {
            assert!(parse_listen(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_price_is_a_number() {
        assert_eq!(parse_price("1.20"), Ok(1.2));
        for wrong in ["-1", "nan", "inf", "", "1 EUR"] {
            assert!(parse_price(wrong).is_err(), "{wrong}");
        }
    }
}
