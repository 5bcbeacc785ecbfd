//! What vendors ask for well-known models, for models that are configured without a price.
//!
//! Owns one dated table. It is a default: a price in the configuration always stands before it, and a model that is
//! served at another address than its vendor's has none here.

use chrono::NaiveDate;

use super::{Api, Model, Price, Usd};

/// The day on which the vendors' pages were last compared with the table.
const AS_OF: Option<NaiveDate> = NaiveDate::from_ymd_opt(2025, 12, 1);

/// What a cache adds to the price of input.
#[derive(Clone, Copy)]
enum Cache {
    /// Writing costs a quarter more than input, reading a tenth of it.
    Anthropic,
    /// Writing costs as input, reading so many micro-dollars per million tokens.
    OpenAi(u64),
}

/// Names without their dates, with micro-dollars per million tokens in and out.
const PRICES: &[(&str, u64, u64, Cache)] = &[
    ("claude-opus-4-5", 5_000_000, 25_000_000, Cache::Anthropic),
    ("claude-opus-4-1", 15_000_000, 75_000_000, Cache::Anthropic),
    ("claude-opus-4-0", 15_000_000, 75_000_000, Cache::Anthropic),
    ("claude-opus-4", 15_000_000, 75_000_000, Cache::Anthropic),
    ("claude-sonnet-4-5", 3_000_000, 15_000_000, Cache::Anthropic),
    ("claude-sonnet-4-0", 3_000_000, 15_000_000, Cache::Anthropic),
    ("claude-sonnet-4", 3_000_000, 15_000_000, Cache::Anthropic),
    ("claude-3-7-sonnet", 3_000_000, 15_000_000, Cache::Anthropic),
    ("claude-haiku-4-5", 1_000_000, 5_000_000, Cache::Anthropic),
    ("claude-3-5-haiku", 800_000, 4_000_000, Cache::Anthropic),
    ("gpt-5.1", 1_250_000, 10_000_000, Cache::OpenAi(125_000)),
    ("gpt-5-mini", 250_000, 2_000_000, Cache::OpenAi(25_000)),
    ("gpt-5-nano", 50_000, 400_000, Cache::OpenAi(5_000)),
    ("gpt-5", 1_250_000, 10_000_000, Cache::OpenAi(125_000)),
    ("gpt-5-codex", 1_250_000, 10_000_000, Cache::OpenAi(125_000)),
    ("gpt-4.1-mini", 400_000, 1_600_000, Cache::OpenAi(100_000)),
    ("gpt-4.1-nano", 100_000, 400_000, Cache::OpenAi(25_000)),
    ("gpt-4.1", 2_000_000, 8_000_000, Cache::OpenAi(500_000)),
    ("gpt-4o-mini", 150_000, 600_000, Cache::OpenAi(75_000)),
    ("gpt-4o", 2_500_000, 10_000_000, Cache::OpenAi(1_250_000)),
    ("o4-mini", 1_100_000, 4_400_000, Cache::OpenAi(275_000)),
    ("o3", 2_000_000, 8_000_000, Cache::OpenAi(500_000)),
];

/// The price of a model at its vendor's own address; none if the table does not know it.
pub(super) fn of_vendor(model: &Model) -> Option<Price> {
    let name = model.model.as_deref().filter(|_| model.base_url.is_none())?;
    let (_, input, output, cache) = PRICES.iter().find(|(known, ..)| is_version_of(name, known))?;
    let (cache_read, cache_write) = match (model.api, cache) {
        (Api::AnthropicMessages, Cache::Anthropic) => (input / 10, input + input / 4),
        (Api::OpenaiChat | Api::OpenaiResponses, Cache::OpenAi(read)) => (*read, *input),
        (
            Api::AnthropicMessages | Api::OpenaiChat | Api::OpenaiResponses | Api::Rehearsal | Api::Replay,
            Cache::Anthropic | Cache::OpenAi(_),
        ) => return None,
    };
    Some(Price {
        input: Usd::from_micros(*input),
        output: Usd::from_micros(*output),
        cache_read: Some(Usd::from_micros(cache_read)),
        cache_write: Some(Usd::from_micros(cache_write)),
        as_of: AS_OF,
    })
}

/// True for the name itself and for one with a date after it. Any other ending makes another model.
fn is_version_of(name: &str, known: &str) -> bool {
    let ending = name.strip_prefix(known);
    ending.is_some_and(|ending| {
        let is_date = |date: &str| date.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        ending.is_empty() || ending.strip_prefix('-').is_some_and(|date| date.len() >= 8 && is_date(date))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(api: Api, name: &str) -> Option<[u64; 4]> {
        let price = of_vendor(&Model { model: Some(name.to_owned()), ..Model::new(api) })?;
        assert_eq!(price.as_of, NaiveDate::from_ymd_opt(2025, 12, 1));
        let [read, write] = [price.cache_read, price.cache_write].map(|usd| usd.unwrap().micros());
        Some([price.input.micros(), price.output.micros(), read, write])
    }

    #[test]
    fn a_known_model_has_its_vendors_price_and_another_has_none() {
        let sonnet = Some([3_000_000, 15_000_000, 300_000, 3_750_000]);
        assert_eq!(micros(Api::AnthropicMessages, "claude-sonnet-4-5"), sonnet);
        assert_eq!(micros(Api::AnthropicMessages, "claude-sonnet-4-20250514"), sonnet);
        let gpt_5 = Some([1_250_000, 10_000_000, 125_000, 1_250_000]);
        assert_eq!(micros(Api::OpenaiResponses, "gpt-5"), gpt_5);
        assert_eq!(micros(Api::OpenaiChat, "gpt-5-2025-08-07"), gpt_5);
        assert_eq!(micros(Api::OpenaiChat, "gpt-5-mini"), Some([250_000, 2_000_000, 25_000, 250_000]));
        for unknown in ["gpt-5-pro", "claude-later", "o3-pro", "gpt-5.1-codex-mini", ""] {
            assert_eq!(micros(Api::OpenaiResponses, unknown), None, "{unknown}");
        }
        assert_eq!(micros(Api::OpenaiChat, "claude-sonnet-4-5"), None);
    }

    #[test]
    fn a_model_served_elsewhere_has_no_price() {
        let model = Model {
            model: Some("gpt-5".to_owned()),
            base_url: Some("http://h".to_owned()),
            ..Model::new(Api::OpenaiChat)
        };
        assert_eq!(of_vendor(&model), None);
    }
}
