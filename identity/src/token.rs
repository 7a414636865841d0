//! Tokens: one line to paste, with which a joiner requests a certificate.
//!
//! ```text
//!   zbt1.w.00c0ffee00c0ffee.<52 letters>.<52 letters>.1f2e3d4c
//!   form | id, 16 digits     secret       authority    CRC-32 of all before its dot
//!        role
//! ```
//!
//! Base 32 in lower case without padding, digits hexadecimal in lower case. There is one text for
//! a token. The CRC finds every single wrong character, so a bad paste is distinguished from a
//! wrong token without a connection. The role in it is for people to read; the one that counts is
//! in the record that the cluster keeps under the id.
//!
//! The cluster keeps a key that is derived from the secret, never the secret: [`TokenVerifier`].
//! A thief of that key can pass for the token's holder, so it is kept as a secret too, but it
//! does not open other programs that the person may have pasted the token into.

use std::fmt;
use std::sync::LazyLock;

use data_encoding::{Encoding, Specification};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::certificate::SpkiPin;
use super::role::PeerRole;

/// The first part of every token of this form: the mark that scanners for lost secrets look for.
const FORM: &str = "zbt1";
/// The prefix of every form of token.
const FAMILY: &str = "zbt";
/// Form, role, id, secret, pin, CRC-32 and the dots between them.
const TOKEN_CHARS: usize = FORM.len() + 1 + ID_DIGITS + 2 * KEY_LETTERS + CRC_DIGITS + 5;
/// The longest text that is parsed: a margin for a later form, so that it is reported as such.
pub const TOKEN_CHARS_MAX: usize = 1024;
const ID_DIGITS: usize = 16;
const KEY_LETTERS: usize = 52;
const CRC_DIGITS: usize = 8;

const DERIVE_LABEL: &[u8] = b"zbelastic token verifier 1";

static BASE_32: LazyLock<Encoding> = LazyLock::new(|| {
    let mut specification = Specification::new();
    specification.symbols.push_str("abcdefghijklmnopqrstuvwxyz234567");
    specification.encoding().expect("32 letters that differ are an encoding")
});

/// The public name of a token, for lists and for revoking it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JoinTokenId(pub u64);

impl JoinTokenId {
    /// Of no token: with it a member requests another certificate after its own ended. It shows its
    /// key instead, of which the cluster keeps the digest.
    pub const MEMBER: Self = Self(0);
}

impl fmt::Display for JoinTokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0width$x}", self.0, width = ID_DIGITS)
    }
}

/// A token, secret and all. It is shown by [`JoinToken::reveal`] and by nothing else.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    role: PeerRole,
    id: JoinTokenId,
    secret: [u8; 32],
    pin: SpkiPin,
}

/// The cluster's record of a token: enough to check a proof, not the token.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TokenVerifier([u8; 32]);

/// Why a text is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TokenFault {
    /// Something was lost or changed on the way here.
    #[error(
        "E2001 token mistyped (checksum): {TOKEN_CHARS} characters from {FORM}. on, as printed"
    )]
    Mistyped,
    /// The checksum is right and the form is not ours.
    #[error("a token of a form that this program does not know, it knows {FORM}")]
    OtherForm,
    /// The checksum is right and the text that it covers is no token.
    #[error("the checksum is right and the text is no token: the program that made it is wrong")]
    Malformed,
}

impl JoinToken {
    /// A new token for a role in the cluster with the authority of this pin.
    ///
    /// # Panics
    /// If the machine has no source of random numbers.
    #[must_use]
    pub fn create(role: PeerRole, pin: SpkiPin) -> Self {
        let mut id = [0_u8; 8];
        let mut secret = [0_u8; 32];
        let random = SystemRandom::new();
        while JoinTokenId(u64::from_le_bytes(id)) == JoinTokenId::MEMBER {
            random.fill(&mut id).expect("the machine has random numbers");
        }
        random.fill(&mut secret).expect("the machine has random numbers");
        Self { role, id: JoinTokenId(u64::from_le_bytes(id)), secret, pin }
    }

    /// The text that a member shows in a token's place: it names the authority, and proves nothing.
    #[must_use]
    pub(super) const fn of_member(role: PeerRole, pin: SpkiPin) -> Self {
        Self { role, id: JoinTokenId::MEMBER, secret: [0; 32], pin }
    }

    /// The token that a text is. White space around it does not count.
    ///
    /// # Errors
    /// If it is none. The usual reason is that it was mistyped.
    pub fn parse(text: &str) -> Result<Self, TokenFault> {
        let text = text.trim_ascii();
        if text.len() > TOKEN_CHARS_MAX {
            return Err(TokenFault::Mistyped);
        }
        let (body, checksum) = text.rsplit_once('.').ok_or(TokenFault::Mistyped)?;
        if checksum != checksum_text(body) {
            return Err(TokenFault::Mistyped);
        }
        let parts: Vec<&str> = body.split('.').collect();
        match parts.as_slice() {
            &[FORM, role, id, secret, pin] => {
                Self::from_parts(role, id, secret, pin).ok_or(TokenFault::Malformed)
            }
            [form, ..] if form.starts_with(FAMILY) && *form != FORM => Err(TokenFault::OtherForm),
            _ => Err(TokenFault::Malformed),
        }
    }

    fn from_parts(role: &str, id: &str, secret: &str, pin: &str) -> Option<Self> {
        let role = PeerRole::ALL.into_iter().find(|known| role == known.letter().to_string())?;
        let number = JoinTokenId(u64::from_str_radix(id, 16).ok()?);
        if number.to_string() != id {
            return None;
        }
        Some(Self { role, id: number, secret: key(secret)?, pin: SpkiPin(key(pin)?) })
    }

    /// The token as text, secret and all: for the one line that its maker is shown.
    #[must_use]
    pub fn reveal(&self) -> String {
        let role = self.role.letter();
        let id = self.id;
        let secret = BASE_32.encode(&self.secret);
        let pin = BASE_32.encode(&self.pin.0);
        let body = format!("{FORM}.{role}.{id}.{secret}.{pin}");
        format!("{body}.{}", checksum_text(&body))
    }

    /// The role in the token's text. The one that counts is in the cluster's record of the token.
    #[must_use]
    pub fn role(&self) -> PeerRole {
        self.role
    }

    /// Id of the token, which is its public name.
    #[must_use]
    pub fn id(&self) -> JoinTokenId {
        self.id
    }

    /// The authority of the cluster that it belongs to.
    #[must_use]
    pub fn pin(&self) -> SpkiPin {
        self.pin
    }

    /// The verifier that the cluster keeps of it. Derived for this id and role, so that a record
    /// under another id or role accepts no proof of this token.
    #[must_use]
    pub fn verifier(&self) -> TokenVerifier {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &self.secret));
        context.update(DERIVE_LABEL);
        context.update(&self.id.0.to_le_bytes());
        context.update(&[self.role.letter() as u8]);
        TokenVerifier(context.sign().as_ref().try_into().expect("HMAC-SHA-256 has 32 bytes"))
    }
}

impl TokenVerifier {
    /// The verifier that was kept as these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its bytes, to be kept where no other user can read them.
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; 32] {
        self.0
    }

    pub(super) fn hmac_key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }
}

/// Prints the role and the id, and nothing of the secret.
impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("role", &self.role)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Prints the name of the type, and nothing of the key.
impl fmt::Debug for TokenVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenVerifier(..)")
    }
}

fn key(letters: &str) -> Option<[u8; 32]> {
    BASE_32.decode(letters.as_bytes()).ok()?.try_into().ok()
}

fn checksum_text(body: &str) -> String {
    format!("{:0width$x}", crc32fast::hash(body.as_bytes()), width = CRC_DIGITS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn token() -> JoinToken {
        JoinToken {
            role: PeerRole::Worker,
            id: JoinTokenId(0x00c0_ffee_00c0_ffee),
            secret: std::array::from_fn(|index| index as u8),
            pin: SpkiPin(std::array::from_fn(|index| 255 - index as u8)),
        }
    }

    fn with_checksum(body: &str) -> String {
        format!("{body}.{}", checksum_text(body))
    }

    #[test]
    fn a_token_has_one_text() {
        let text = "zbt1.w.00c0ffee00c0ffee.aaaqeayeaudaocajbifqydiob4ibceqtcqkrmfyydenbwha5dypq.\
                    777p37h37l47r57w6x2ph4xr6dx653pm5pvot2hh43s6jy7c4hqa.d0ce9dea";
        assert_eq!(token().reveal(), text);
        assert_eq!(token().reveal().len(), TOKEN_CHARS);
        assert_eq!(JoinToken::parse(&token().reveal()), Ok(token()));
        assert_eq!(JoinToken::parse(&format!(" {}\r\n", token().reveal())), Ok(token()));
        for role in PeerRole::ALL {
            let made = JoinToken::create(role, token().pin);
            assert_eq!(JoinToken::parse(&made.reveal()), Ok(made));
        }
    }

    #[test]
    fn each_single_wrong_character_is_a_token_mistyped() {
        let text = token().reveal();
        for position in 0..text.len() {
            for wrong in (0x20..0x7f).map(char::from) {
                let mut changed: Vec<char> = text.chars().collect();
                if std::mem::replace(&mut changed[position], wrong) == wrong {
                    continue;
                }
                let changed: String = changed.into_iter().collect();
                assert_eq!(JoinToken::parse(&changed), Err(TokenFault::Mistyped), "{changed}");
            }
        }
    }

    #[test]
    fn a_lost_or_doubled_or_swapped_character_is_a_token_mistyped() {
        let text = token().reveal();
        for position in 0..text.len() {
            let (before, after) = text.split_at(position);
            let lost = format!("{before}{}", &after[1..]);
            let doubled = format!("{before}{}{after}", &after[..1]);
            assert_eq!(JoinToken::parse(&lost), Err(TokenFault::Mistyped), "{lost}");
            assert_eq!(JoinToken::parse(&doubled), Err(TokenFault::Mistyped), "{doubled}");
            let mut swapped = text.clone().into_bytes();
            swapped.swap(position, (position + 1) % text.len());
            let swapped = String::from_utf8(swapped).unwrap();
            if swapped != text {
                assert_eq!(JoinToken::parse(&swapped), Err(TokenFault::Mistyped), "{swapped}");
            }
        }
        assert!(TokenFault::Mistyped.to_string().contains("E2001 token mistyped (checksum)"));
    }

    #[test]
    fn a_right_checksum_over_something_else_is_distinguished() {
        let body = token().reveal();
        let body = body.rsplit_once('.').unwrap().0;
        let check =
            |body: &str, fault| assert_eq!(JoinToken::parse(&with_checksum(body)), Err(fault));
        check(&body.replace("zbt1", "zbt2"), TokenFault::OtherForm);
        check(&body.replace("zbt1", "abc1"), TokenFault::Malformed);
        check(&body.replace(".w.", ".x."), TokenFault::Malformed);
        check(&body.replace(".w.", ".ww."), TokenFault::Malformed);
        check(&body.replace(".00c0", ".00C0"), TokenFault::Malformed);
        check(&body.replace(".00c0", ".+0c0"), TokenFault::Malformed);
        check(&body.to_uppercase().replace("ZBT1", "zbt1"), TokenFault::Malformed);
        check(&format!("{body}.x"), TokenFault::Malformed);
        check("", TokenFault::Malformed);
        check(&"x".repeat(TOKEN_CHARS_MAX - 9), TokenFault::Malformed);
        check(&"x".repeat(TOKEN_CHARS_MAX - 8), TokenFault::Mistyped);
        // The last letter of 32 bytes holds one bit; another one with the same bit is another text.
        let (rest, last) = body.split_at(body.len() - 1);
        for letter in ('a'..='z').chain('2'..='7').filter(|letter| letter.to_string() != last) {
            if let Ok(other) = JoinToken::parse(&with_checksum(&format!("{rest}{letter}"))) {
                assert_ne!(other, token());
            }
        }
    }

    #[test]
    fn neither_token_nor_verifier_show_the_secret_by_accident() {
        let secret = BASE_32.encode(&token().secret);
        for text in [format!("{:?}", token()), format!("{:?}", token().verifier())] {
            assert!(!text.contains(&secret) && !text.contains('['), "{text}");
        }
        assert!(token().reveal().contains(&secret));
    }

    #[test]
    fn a_verifier_is_of_one_secret_for_one_id_and_one_role() {
        let same = token();
        let mut others = [token(), token(), token()];
        others[0].id = JoinTokenId(1);
        others[1].role = PeerRole::Controller;
        others[2].secret[31] ^= 1;
        assert!(token().verifier() == same.verifier());
        for other in others {
            assert!(token().verifier() != other.verifier());
        }
        assert!(token().verifier().0 != token().secret);
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in any::<String>(), dotted in "zbt[0-9](\\.[a-z2-7]{0,60}){0,6}") {
            let _ = JoinToken::parse(&text);
            prop_assert!(JoinToken::parse(&dotted).is_err());
            let _ = JoinToken::parse(&with_checksum(&dotted));
        }
    }
}
