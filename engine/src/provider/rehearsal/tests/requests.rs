//! What is committed of a request.

use super::*;
use crate::config::Price;

fn hash(model: &Rehearsal, request: &Request) -> [u8; 32] {
    model.prepare(request).unwrap().hash
}

#[test]
fn equal_requests_have_equal_hashes_and_others_differ() {
    let model = one(json!({}));
    let tool = |name: &str| Arc::from([ToolSpec::new(name, "d", json!({ "b": 1, "a": 2 }))]);
    let mut requests = vec![request(0, 0), request(1, 0), request(0, 1)];
    for change in [
        |request: &mut Request| request.model = "scripts".into(),
        |request: &mut Request| request.thinking = "low".into(),
        |request: &mut Request| (request.model, request.thinking) = ("scripto".into(), "ff".into()),
        |request: &mut Request| request.system = Some("".into()),
        |request: &mut Request| request.system = Some("be brief".into()),
        |request: &mut Request| request.messages.clear(),
        |request: &mut Request| request.messages.push(request.messages[0].clone()),
    ] {
        let mut changed = request(0, 0);
        change(&mut changed);
        requests.push(changed);
    }
    requests.extend(["a", "b"].map(|name| Request { tools: tool(name), ..request(0, 0) }));
    let hashes: Vec<_> = requests.iter().map(|request| hash(&model, request)).collect();
    for (at, hash) in hashes.iter().enumerate() {
        assert!(!hashes[at + 1..].contains(hash), "{:?}", requests[at]);
    }
    let fresh = one(json!({}));
    let again: Vec<_> = requests.iter().rev().map(|request| hash(&fresh, request)).collect();
    assert!(again.into_iter().rev().eq(hashes));
}

#[test]
fn hashes_do_not_depend_on_what_was_hashed_before() {
    let model = one(json!({}));
    let with_system = |text: &str| Request { system: Some(text.into()), ..request(0, 0) };
    let first = hash(&model, &with_system("0"));
    let kept: Vec<Request> = (0..200).map(|n| with_system(&n.to_string())).collect();
    let hashes: Vec<_> = kept.iter().map(|request| hash(&model, request)).collect();
    assert_eq!(hashes[0], first);
    assert_eq!(kept.iter().map(|request| hash(&model, request)).collect::<Vec<_>>(), hashes);
}

#[test]
fn an_intent_reserves_the_estimated_input_and_a_fixed_output() {
    let model = one(json!({}));
    let picture = Block::Image { data: "A".repeat(100_000), media_type: "image/png".into() };
    let content = vec![Block::Text("12345".into()), picture];
    let message = Message::User(model::message::UserMessage { content, at: Millis(0) });
    let request = Request {
        system: Some("12345678".into()),
        messages: vec![Arc::new(Prepared { message, hash: [0; 32] })],
        tools: Arc::from([ToolSpec::new("ls", "list", json!({}))]),
        ..request(0, 0)
    };
    let intent = model.prepare(&request).unwrap();
    assert_eq!((intent.converter_version, intent.reserve), (1, used(1_606, 1_024)));
    let other = one(json!({})).output_tokens_max(7);
    assert_eq!(other.prepare(&request).unwrap().reserve, used(1_606, 7));
}

#[test]
fn an_intent_reserves_no_less_than_the_script_says_and_what_it_costs() {
    let usd = |text: &str| text.parse::<crate::config::Usd>().unwrap();
    let price = Price { input: usd("3"), output: usd("15"), cache_write: Some(usd("4")), ..Price::default() };
    let reserve = |turn| one(turn).price(Some(price.clone())).prepare(&request(0, 0)).unwrap().reserve;
    let plain = used(3, 1_024);
    assert_eq!(reserve(json!({})), Usage { usd_micros: 3 * 4 + 1_024 * 15, ..plain });
    let claimed = json!({ "usage": { "input": 10, "output": 2_000, "cache_read": 5 } });
    let expected = Usage { cache_read: 5, usd_micros: 30 + 30_000 + 15, ..used(10, 2_000) };
    assert_eq!(reserve(claimed), expected);
}
