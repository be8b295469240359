/** Suggestions for a first message. Each one of the demo has its own answer in the demo's script; a test checks this. */

export interface Suggestion {
  title: string;
  text: string;
  about: string;
}

export const WITH_DEMO: Suggestion[] = [
  { title: "An approval", text: "Write a note", about: "It asks before it writes. Answer here, later, or from anywhere." },
  { title: "A slow command", text: "Build something", about: "After a second it goes on in the background, and reports when it is done." },
  { title: "A follow-up", text: "Go step by step", about: "Write something while it works: it joins at the next step." },
  { title: "A restart", text: "Give me a long answer", about: "Kill the server in the middle and start it again: what you read stays." },
  { title: "A question", text: "Ask me a question", about: "It waits for you for as long as it takes, and holds nothing meanwhile." },
  { title: "An answer to read", text: "Show me some markdown", about: "A table, a list and code in two languages." },
];

const ANYWHERE_NOTE = "Nothing is changed before you allow it.";

export const ANYWHERE: Suggestion[] = [
  { title: "Look around", text: "What is in this folder, and what is it for?", about: "It reads here without asking." },
  { title: "Run something", text: "Find out how the tests are run here, and run them.", about: "It asks before it runs a command; slow ones go on in the background." },
  { title: "Change something", text: "Find something small that could be better here, and propose the change.", about: ANYWHERE_NOTE },
  { title: "Ask", text: "Explain the last change that was made here.", about: "Close the page whenever you like: the answer is kept." },
];
