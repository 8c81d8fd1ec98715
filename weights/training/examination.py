"""Two hundred prompts whose words the corpus does not contain, and what a right answer says.

After the sign of equality: what the answer must say. ``&`` joins what must all be there, ``|`` alternatives;
numbers are the last ones of the reply, and a row of numbers all of them. Conversations are given as their user
messages: the model's own replies stand between them, and the last reply counts.
"""

import re
from dataclasses import dataclass

from .jokes import JOKES, RIDDLES


@dataclass(frozen=True)
class Question:
    """One prompt, with what its answer must say."""

    skill: str
    messages: tuple[str, ...]
    wanted: tuple[str, ...]


_PLAIN = {
    "capitals": """
Could you say which city serves as capital for Hungary? = Budapest
I am going to Norway. Which city is its capital? = Oslo
France has which capital? = Paris
My homework asks for the capital of Kenya, what is it? = Nairobi
What would you call the capital city of Egypt? = Cairo
Hi! What's the capital of Portugal again? = Lisbon
Remind me of Austria's capital. = Vienna
Poland's capital city is? = Warsaw
Can you name Thailand's capital? = Bangkok
And do you happen to know Canada's capital? = Ottawa
what is the capital city of peru called? = Lima
Do you know what the capital of Vietnam is? = Hanoi
Australia, which city is the capital there? = Canberra
Which country would you be in if you stood in its capital Helsinki? = Finland
Madrid is which country's capital? = Spain
Budapest, of which country is it the capital? = Hungary
Ankara is the capital of what? = Turkey
Reykjavik is the capital of which land? = Iceland
Is it true that Sydney is the capital of Australia? = Canberra
Is Berlin really the capital of Germany? = Yes""",
    "opposites": """
If you had to name the opposite of cold, what would it be? = hot
Please give the opposite of fast, thanks. = slow
What's the exact opposite of empty? = full
Can you find the opposite of rich? = poor
Opposite for tall? = short
I keep looking for a word that is the opposite of early. = late
The word hard, what is its opposite? = soft
Which is the opposite of wet? = dry
Name the opposite of above. = below
What word is opposite to strong? = weak
And what could be the opposite of love? = hate
Do you know a word that is the opposite of old? = new|young""",
    "plurals": """
What would be the plural of child? = children
Which is the plural of tooth? = teeth
Please give the plural of foot, thanks. = feet
I am looking for the plural of knife. = knives
The word city, what is its plural? = cities
Can you form the plural of goose? = geese
Plural for mouse? = mice
Do you happen to know the plural of woman? = women
One leaf, but two ... what? = leaves
Name the plural of box. = boxes
What's the right plural of sheep? = sheep
And what could be the plural of tomato? = tomatoes""",
    "sounds": """
Which kind of noise would you hear from a cow? = moo
Which noise would a dog make? = woof|bark
If I hear a duck, what does it say? = quack
Tell me the sound that a cat makes. = meow
What does an owl say at night? = hoo
What is the typical sound of a lion? = roar
What would a sheep say? = baa
How do you imitate a pig? = oink|grunt
And which sound does the frog make? = croak
What noise comes from a bee? = buzz""",
    "colours": """
What would you say is the colour of grass? = green
What colour would a banana be? = yellow
Snow has what colour? = white
Can you name the colour of coal? = black
A tomato, what colour is it? = red
Which colour do you see when you look at the sky? = blue
I want to draw an elephant, which colour do I take? = grey
Is there a colour that a carrot has? = orange
the color of a flamingo is? = pink
What's the usual colour of chocolate? = brown""",
    "days and months": """
On Monday evening, which day is about to come? = Tuesday
Which day will come after Friday? = Saturday
Which weekday is before Thursday? = Wednesday
If it is Sunday today, which day is tomorrow? = Monday
Once November is gone, which month do we have? = December
And which month lies before June? = May
Which month lies just before January? = December
Give me the third month of the year. = March
How many months make up one year? = twelve
How many days does one week have? = seven
Could you list all days of the week? = Monday & Tuesday & Wednesday & Thursday & Friday & Saturday & Sunday
Name every month of the year, please. = January & April & August & December""",
    "sums": """
What would 3 + 4 be? = 7
Could you add 5 and 6 for me? = 11
what number do 2 plus 2 give us? = 4
I need the result of 9 + 8. = 17
7 plus 6 makes how much? = 13
Give me the sum of 10 and 5. = 15
Please solve 12 + 3. = 15
Can you tell me what 8 plus 8 is? = 16
Twelve plus five equals? = 17
What would 9 - 4 be? = 5
Could you take 3 from 10 for me? = 7
I need the result of 15 - 7. = 8
18 minus 9 makes how much? = 9
Can you tell me what 13 minus 5 is? = 8
What number is 11 minus 10? = 1
Sixteen minus four equals? = 12
I bought 4 pears and then 5 more. How many pears are that? = 9
Lea has 12 nuts and eats 7. How many nuts remain? = 5
There were 8 birds and 3 flew away. How many are left? = 5
Nick owns 6 stamps and gets 7 more. How many stamps has he now? = 13""",
    "counting": """
Could you count from 3 to 8? = 3, 4, 5, 6, 7, 8
Please count up from 1 to 6 for me. = 1, 2, 3, 4, 5, 6
I want you to count from 5 to 12. = 5, 6, 7, 8, 9, 10, 11, 12
Try to count to 9. = 1, 2, 3, 4, 5, 6, 7, 8, 9
Can you count all the way to 12? = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12
Could you count backwards from 7 to 2? = 7, 6, 5, 4, 3, 2
Please count down from 10 to 5 for me. = 10, 9, 8, 7, 6, 5
Do a countdown starting from 6. = 6, 5, 4, 3, 2, 1
Which number do you get after 41? = 42
What number would come before 30? = 29""",
    "tinychat": """
What's the use of tinychat pull? = download
What would tinychat bench do? = fast
I don't understand tinychat convert, what does it do? = folder
Which command shows me all my stored models? = tinychat models
What command should I type to delete a model? = tinychat rm
How could I download a new model? = tinychat pull
I want to know how fast a model runs, which command? = tinychat bench
What's the meaning of --temperature? = randomness
What's the meaning of the flag --seed? = repeatable
Could you explain --max-tokens to me? = tokens of a reply
And --top-k, what does it do? = most likely tokens
What is the flag --threads good for? = threads
Which flag sets how many threads are used? = --threads
How could I make the replies more creative? = --temperature
What could I use to always get the same answer? = --seed
What does /undo do here? = last message
What will /clear do? = forget
How could I quit this chat? = /exit
How can I forget the whole conversation and start again? = /clear""",
    "itself": """
So who are you exactly? = demo model
Please say who you are. = demo model
And what might your name be? = tinychat
Are you a real human being? = not a person|program
What kind of things can you do? = capitals
What are the things you can't do? = small|mistakes
So how big are you, in parameters? = million
Who was it that made you? = script
How might I get a better model than you? = tinychat pull
Can you tell me what tinychat is? = language models
Do you run on my CPU or in the cloud? = CPU
Could you speak French with me? = English""",
    "greetings": """
Hello, my friend! = Hello|Hi
Hello again, dear tinychat! = Hello|Hi
A very good morning to you! = Hello|Hi
Hello! How are you doing today? = fine|well|Hello
Thanks so much for your help! = welcome
Okay, I have to leave now, goodbye! = bye|Goodbye
Bye, see you next week! = bye|Goodbye""",
    "honesty": """
Who wrote the book Robinson Crusoe? = don't know
What's the weather going to be in Oslo tomorrow? = don't know
How many inhabitants does Brazil have? = don't know
Who is the president of Mexico right now? = don't know
Could you explain quantum physics to me? = don't know
How do I bake an apple pie? = don't know
When was Napoleon born? = don't know
Which team won the game yesterday? = don't know
What is the capital of Mongolia, please? = don't know
What would 345 + 678 be? = can't|too hard
Could you calculate 27 times 14? = can't|too hard
Do you know my shoe size? = don't know|haven't told""",
    "stories and jokes": """
Could you tell me a story about a fox? = fox
I'd love a little story about a bear and an owl. = bear & owl
Please write me a story about a rabbit called Mimi. = rabbit & Mimi
Tell me a tale of a sailor on an island. = sailor & island
Could you invent a story about a robot in space? = robot & space
A bedtime story about a mouse and a cat, please. = mouse & cat
May I hear a story about a queen in a castle? = queen & castle
Do you have a story about a turtle named Otto for me? = turtle & Otto
Could you tell me some joke? = <joke>
I would love to hear a joke now. = <joke>
Could I have a riddle, please? = <riddle>
What has hands but can never clap? = clock""",
}

_CONVERSATIONS = """
Hello! My name is Miriam. / So what name do I have? = Miriam
Hi, people call me Tobias. / What is the capital of Italy? / Would you say my name? = Tobias
I am called Fenwick. / Tell me a joke. / Is my name still known to you? = Fenwick
Good day, I'm Rosalind. / 3 + 5? / And what is 9 - 2? / Can you remember my name? = Rosalind
My name is Quillon. / Tell me a story about a fox called Max. / How was my name again? = Quillon
Hey, I'm Bea. / I live in Porto. / Which name did I give myself? = Bea
Please call me Captain. / What's the opposite of hot? / How do I call myself? = Captain
My name is Ida. / No, sorry, my name is Olaf. / So what is my name now? = Olaf
My favourite colour is purple. / So which colour is my favourite? = purple
My favorite color is teal. / What does a dog say? / Which color was it that I like? = teal
I really like green, it is my favourite colour. / Which colour do I like the most? = green
The colour I like most is orange. / Count to 5. / What's my favourite colour then? = orange
Blue is my favourite colour. / My name is Kurt. / And which colour did I like? = blue
My favourite animal is the otter. / So which animal is my favourite? = otter
I like penguins most of all animals. / What is 4 + 4? / Can you tell which animal I like best? = penguin
My favourite animal is the owl. / Tell me a story about a bear. / Which animal was my favourite? = owl
The animal I love most is the koala. / How are you? / My favourite animal, which one was that? = koala
I live in Bergen. / So where is it that I live? = Bergen
I am from Toronto. / What is the capital of Chile? / In which city am I at home? = Toronto
My home is Wexbury. / What is tinychat? / Have you kept in mind where I live? = Wexbury
I'm living in Osaka. / Tell me a riddle. / Where was I living? = Osaka
I have a dog called Bruno. / What's the name of my dog? = Bruno
My cat is called Minka. / What colour is snow? / How is my cat called? = Minka
I have a parrot named Rico. / I live in Malmo. / What was it that I called my parrot? = Rico
My name is Nele and my favourite colour is yellow. / Say, what might my name be? = Nele
My name is Jarek. I live in Krakow. / In what place do I live? = Krakow
My name is Ana. / My favourite colour is red. / I live in Lima. / Now which colour was it that I like? = red
I'm Pavel. / My favourite animal is the wolf. / I live in Riga. / Now tell what my name is. = Pavel
Have I told you my name? = haven't told|don't know
Hi! Do you perhaps know my favourite colour? = haven't told|don't know
My name is Sven. / Have I said where I live? = haven't told|don't know
I live in Cork. / So do you know what my name might be? = haven't told|don't know"""


_LISTS = {"<joke>": JOKES, "<riddle>": tuple(RIDDLES)}


def questions() -> list[Question]:
    """Return all prompts, skill by skill."""
    found = [_question(skill, line) for skill, lines in _PLAIN.items() for line in lines.strip().splitlines()]
    return found + [_question("memory", line) for line in _CONVERSATIONS.strip().splitlines()]


def is_right(question: Question, reply: str) -> bool:
    """Return whether the reply says what it must, in any case of letters."""
    return all(any(_says(reply, word) for word in wanted.split("|")) for wanted in question.wanted)


def _says(reply: str, word: str) -> bool:
    if word in _LISTS:
        return reply in _LISTS[word]
    numbers = re.findall(r"\d+", word)
    if numbers:
        found = re.findall(r"\d+", reply)
        return found == numbers if len(numbers) > 1 else found[-1:] == numbers
    return re.search(rf"(?<!\w){re.escape(word)}", reply, re.IGNORECASE) is not None


def _question(skill: str, line: str) -> Question:
    # The last sign of equality: sums have others.
    asked, _, wanted = line.rpartition(" = ")
    return Question(skill, tuple(asked.split(" / ")), tuple(wanted.split(" & ")))
