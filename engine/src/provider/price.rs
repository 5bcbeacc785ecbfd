//! What tokens cost.
//!
//! Owns the arithmetic of money, in whole micro-dollars. It must never pass through a float, nor round down.

use model::message::Usage;

use crate::config::{Price, Usd};

/// Tokens that a price is for.
const TOKENS: u128 = 1_000_000;

/// `usage` with its cost; without a price, money is not counted.
pub(super) fn priced(price: Option<&Price>, usage: Usage) -> Usage {
    let Some(price) = price else { return usage };
    let of = |tokens: u64, usd: Usd| u128::from(tokens) * u128::from(usd.micros());
    let total = of(usage.input, price.input)
        + of(usage.output, price.output)
        + of(usage.cache_read, price.cache_read.unwrap_or(price.input))
        + of(usage.cache_write, price.cache_write.unwrap_or(price.input));
    let usd_micros = u64::try_from(total.div_ceil(TOKENS)).unwrap_or(u64::MAX);
    Usage { usd_micros, ..usage }
}

/// The most that so many tokens can cost: input may be written to a cache, which can be dearer.
pub(super) fn reserve(price: Option<&Price>, input: u64, output: u64) -> Usage {
    let plain = Usage { input, output, ..Usage::default() };
    let cached = Usage { cache_write: input, input: 0, ..plain };
    let usd_micros = priced(price, plain).usd_micros.max(priced(price, cached).usd_micros);
    Usage { usd_micros, ..plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price() -> Price {
        let usd = |text: &str| text.parse::<Usd>().unwrap();
        Price {
            input: usd("3"),
            output: usd("15"),
            cache_read: Some(usd("0.3")),
            cache_write: Some(usd("3.75")),
            as_of: None,
        }
    }

    #[test]
    fn each_kind_of_token_has_its_price_and_a_part_of_a_micro_dollar_counts_as_one() {
        let usage = Usage { input: 1_000, output: 100, cache_read: 1, cache_write: 4, usd_micros: 0 };
        assert_eq!(priced(Some(&price()), usage).usd_micros, 3_000 + 1_500 + 1 + 15);
        assert_eq!(priced(None, usage), usage);
        let plain = Price { cache_read: None, cache_write: None, ..price() };
        assert_eq!(priced(Some(&plain), usage).usd_micros, 3_000 + 1_500 + 3 + 12);
        let most = Usage { input: u64::MAX, output: u64::MAX, ..Usage::default() };
        assert_eq!(priced(Some(&price()), most).usd_micros, u64::MAX);
    }

    #[test]
    fn a_reserve_counts_with_the_dearer_way_to_send_input() {
        let reserved = Usage { input: 1_000, output: 10, usd_micros: 3_900, ..Usage::default() };
        assert_eq!(reserve(Some(&price()), 1_000, 10), reserved);
    }
}
