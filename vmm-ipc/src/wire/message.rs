//! Messages: what the two sides say to each other.

use super::bytes::Reader;
use super::{BufferId, Descriptor, Update, VERSION, WireError};

/// One thing that one side says to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Message {
    /// The first message of each side.
    Hello(Hello),
    /// A whole buffer, whose file descriptors follow in [`Message::Handles`].
    Offer(Descriptor),
    /// New chunks of a buffer, whose file descriptors follow in [`Message::Handles`].
    Update(Update),
    /// File descriptors of some chunks, which come with this message.
    Handles {
        /// The buffer.
        id: BufferId,
        /// The chunk of the first one.
        first: u32,
        /// How many: as many as come with the message.
        count: u32,
    },
    /// The importer has mapped a generation.
    Accepted {
        /// The buffer.
        id: BufferId,
        /// The generation.
        generation: u64,
    },
    /// The importer has not mapped what it was offered, and keeps nothing of it.
    Refused {
        /// The buffer.
        id: BufferId,
        /// The generation.
        generation: u64,
        /// Why.
        refusal: Refusal,
    },
    /// The exporter will send nothing more of this buffer. What is mapped stays.
    Retired {
        /// The buffer.
        id: BufferId,
    },
}

/// The first message of each side: which version it speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The format version: [`VERSION`].
    pub version: u16,
}

/// Why an importer refused, and in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// For programs.
    pub reason: Reason,
    /// For people: at most [`Refusal::MAX_TEXT`] bytes.
    pub text: String,
}

impl Refusal {
    /// The length of the text in bytes at most.
    pub const MAX_TEXT: usize = 1024;

    /// With `text` cut to what fits.
    pub fn new(reason: Reason, text: &str) -> Self {
        let most = text.len().min(Self::MAX_TEXT);
        let end = (0..=most)
            .rev()
            .find(|&end| text.is_char_boundary(end))
            .unwrap_or(0);
        Refusal {
            reason,
            text: text.get(..end).unwrap_or_default().to_owned(),
        }
    }
}

/// Why an importer refused, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// Something else: see the text.
    Other,
    /// The device is not visible to the importer.
    NoDevice,
    /// Some limit of the importer.
    Limit,
    /// The importer had too little memory, addresses or file descriptors.
    Resources,
    /// What was offered is not what it said.
    Invalid,
    /// An update that does not follow the generation that the importer has.
    OutOfOrder,
    /// The message was longer than the importer's channel takes, which is closed with this.
    TooLong,
}

impl Reason {
    fn decode(value: u16) -> Result<Self, WireError> {
        Ok(match value {
            0 => Reason::Other,
            1 => Reason::NoDevice,
            2 => Reason::Limit,
            3 => Reason::Resources,
            4 => Reason::Invalid,
            5 => Reason::OutOfOrder,
            6 => Reason::TooLong,
            other => {
                return Err(WireError::Unknown {
                    field: "reason",
                    value: other.into(),
                });
            }
        })
    }

    const fn encode(self) -> u16 {
        match self {
            Reason::Other => 0,
            Reason::NoDevice => 1,
            Reason::Limit => 2,
            Reason::Resources => 3,
            Reason::Invalid => 4,
            Reason::OutOfOrder => 5,
            Reason::TooLong => 6,
        }
    }
}

/// What a message is, as the frame says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MessageKind {
    /// [`Message::Hello`]
    Hello,
    /// [`Message::Offer`]
    Offer,
    /// [`Message::Update`]
    Update,
    /// [`Message::Handles`]
    Handles,
    /// [`Message::Accepted`]
    Accepted,
    /// [`Message::Refused`]
    Refused,
    /// [`Message::Retired`]
    Retired,
}

impl MessageKind {
    pub(super) fn decode(value: u8) -> Result<Self, WireError> {
        Ok(match value {
            1 => MessageKind::Hello,
            2 => MessageKind::Offer,
            3 => MessageKind::Update,
            4 => MessageKind::Handles,
            5 => MessageKind::Accepted,
            6 => MessageKind::Refused,
            7 => MessageKind::Retired,
            other => {
                return Err(WireError::Unknown {
                    field: "message kind",
                    value: other.into(),
                });
            }
        })
    }

    pub(super) const fn encode(self) -> u8 {
        match self {
            MessageKind::Hello => 1,
            MessageKind::Offer => 2,
            MessageKind::Update => 3,
            MessageKind::Handles => 4,
            MessageKind::Accepted => 5,
            MessageKind::Refused => 6,
            MessageKind::Retired => 7,
        }
    }

    /// The name, for error texts.
    pub const fn name(self) -> &'static str {
        match self {
            MessageKind::Hello => "hello",
            MessageKind::Offer => "an offer",
            MessageKind::Update => "an update",
            MessageKind::Handles => "handles",
            MessageKind::Accepted => "an acceptance",
            MessageKind::Refused => "a refusal",
            MessageKind::Retired => "a retirement",
        }
    }

    /// Bytes of payload at most, where there is a bound beside the chunks' own.
    pub const fn max_payload(self) -> Option<usize> {
        match self {
            MessageKind::Hello => Some(16),
            MessageKind::Offer | MessageKind::Update => None,
            MessageKind::Handles | MessageKind::Accepted => Some(24),
            MessageKind::Refused => Some(32 + Refusal::MAX_TEXT),
            MessageKind::Retired => Some(16),
        }
    }
}

const HELLO: [u8; 8] = *b"VMM-IPC\0";

impl Message {
    /// What kind of message it is.
    pub fn kind(&self) -> MessageKind {
        match self {
            Message::Hello(_) => MessageKind::Hello,
            Message::Offer(_) => MessageKind::Offer,
            Message::Update(_) => MessageKind::Update,
            Message::Handles { .. } => MessageKind::Handles,
            Message::Accepted { .. } => MessageKind::Accepted,
            Message::Refused { .. } => MessageKind::Refused,
            Message::Retired { .. } => MessageKind::Retired,
        }
    }

    /// Read a message's payload, which has to be all of `bytes`.
    ///
    /// # Errors
    ///
    /// Says what is wrong with the bytes.
    pub fn decode(kind: MessageKind, bytes: &[u8]) -> Result<Self, WireError> {
        let reader = &mut Reader::new(bytes);
        let message = match kind {
            MessageKind::Offer => return Descriptor::decode(bytes).map(Message::Offer),
            MessageKind::Update => return Update::decode(bytes).map(Message::Update),
            MessageKind::Hello => {
                if reader.array()? != HELLO {
                    return Err(WireError::Magic);
                }
                let version = reader.u16()?;
                if version != VERSION {
                    return Err(WireError::Version { found: version });
                }
                reader.reserved::<6>("the reserved field of a hello")?;
                Message::Hello(Hello { version })
            }
            MessageKind::Handles => Message::Handles {
                id: BufferId(reader.array()?),
                first: reader.u32()?,
                count: reader.u32()?,
            },
            MessageKind::Accepted => Message::Accepted {
                id: BufferId(reader.array()?),
                generation: reader.u64()?,
            },
            MessageKind::Refused => {
                let (id, generation) = (BufferId(reader.array()?), reader.u64()?);
                let reason = Reason::decode(reader.u16()?)?;
                reader.reserved::<6>("the reserved field of a refusal")?;
                if reader.left() > Refusal::MAX_TEXT {
                    let (found, limit) = (reader.left() as u64, Refusal::MAX_TEXT as u64);
                    return Err(WireError::Limit {
                        what: "bytes of text",
                        found,
                        limit,
                    });
                }
                let text = reader.take(reader.left())?;
                let text = std::str::from_utf8(text)
                    .map_err(|_| WireError::Text)?
                    .to_owned();
                Message::Refused {
                    id,
                    generation,
                    refusal: Refusal { reason, text },
                }
            }
            MessageKind::Retired => Message::Retired {
                id: BufferId(reader.array()?),
            },
        };
        reader.end()?;
        Ok(message)
    }

    /// The payload's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Vec::with_capacity(32);
        match self {
            Message::Hello(hello) => {
                to.extend_from_slice(&HELLO);
                to.extend_from_slice(&hello.version.to_le_bytes());
                to.extend_from_slice(&[0; 6]);
            }
            Message::Offer(descriptor) => return descriptor.encode(),
            Message::Update(update) => return update.encode(),
            Message::Handles { id, first, count } => {
                to.extend_from_slice(&id.0);
                to.extend_from_slice(&first.to_le_bytes());
                to.extend_from_slice(&count.to_le_bytes());
            }
            Message::Accepted { id, generation } => {
                to.extend_from_slice(&id.0);
                to.extend_from_slice(&generation.to_le_bytes());
            }
            Message::Refused {
                id,
                generation,
                refusal,
            } => {
                to.extend_from_slice(&id.0);
                to.extend_from_slice(&generation.to_le_bytes());
                to.extend_from_slice(&refusal.reason.encode().to_le_bytes());
                to.extend_from_slice(&[0; 6]);
                to.extend_from_slice(refusal.text.as_bytes());
            }
            Message::Retired { id } => to.extend_from_slice(&id.0),
        }
        to
    }
}
